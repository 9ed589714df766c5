"use strict";
// Line charts and small formats. Every text goes in as text, never as markup.
const Charts = (() => {
  const SPACE = "http://www.w3.org/2000/svg";

  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  function draw(name, attributes = {}, text = null) {
    const element = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== null) element.textContent = text;
    return element;
  }

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const number = (value) => !isNumber(value) ? "–" : value === 0 ? "0" :
    Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") :
    Math.abs(value) >= 0.001 ? value.toPrecision(4).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "") :
    value.toExponential(2);
  const share = (value) => isNumber(value) ? `${Math.round(100 * value)} %` : "–";

  function bytes(count) {
    if (!isNumber(count)) return "–";
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (count < 1000) return unit === "B" ? `${count} B` : `${count.toFixed(1)} ${unit}`;
      count /= 1000;
    }
    return `${count.toFixed(1)} TB`;
  }

  function seconds(value) {
    if (!isNumber(value)) return "–";
    if (value === 0) return "0 s";
    if (Math.abs(value) < 0.001) return `${(1e6 * value).toFixed(0)} µs`;
    if (Math.abs(value) < 1) return `${(1000 * value).toPrecision(3)} ms`;
    if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
    const whole = Math.round(value), hours = Math.floor(whole / 3600);
    const minutes = Math.floor(whole / 60) % 60, rest = whole % 60;
    return hours ? `${hours} h ${minutes} min` : `${minutes} min ${rest} s`;
  }

  function ticks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) {
      found.push(Number((n * step).toPrecision(12)));
    }
    return found;
  }

  // From zero, with some air above.
  const fromZero = (values) => [0, Math.max(...values, 0) * 1.08 || 1];

  // A metric whose best is 1: what a guess reaches is in sight, and a small difference looks small.
  function aroundGuess(values) {
    const top = Math.max(...values), bottom = Math.min(...values);
    if (bottom < 0 || top > 1) return [Math.min(0, bottom * 1.05), Math.max(1, top)];
    return [Math.max(0, Math.floor((bottom - 0.05) * 10) / 10), 1];
  }

  class Plot {
    constructor(place, {label, format = number, range = fromZero, table}) {
      this.options = {label, format, range, table};
      this.hidden = new Set();
      this.keys = make("div", {class: "keys", role: "group", "aria-label": `Lines of ${label}`});
      this.area = make("div", {class: "plot", role: "slider", tabindex: "0", "aria-label":
        `${label}: move along the exchanges`, "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0"});
      this.reading = make("p", {class: "reading"}, "\u00a0");
      this.rows = make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, numbers`});
      const details = make("details", {}, make("summary", {}, "Numbers"), this.rows);
      details.addEventListener("toggle", () => this.drawTable());
      this.details = details;
      place.append(this.keys, this.area, this.reading, details);
      this.cursor = null;
      this.area.addEventListener("pointermove", (event) => this.point(event));
      this.area.addEventListener("pointerleave", () => { this.cursor = null; this.redraw(); });
      this.area.addEventListener("keydown", (event) => this.key(event));
      this.area.addEventListener("blur", () => { this.cursor = null; this.redraw(); });
      new ResizeObserver(() => this.redraw()).observe(this.area);
    }

    show(series, bases = []) {
      this.series = series;
      this.bases = bases;
      this.xs = [...new Set(series.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
      this.redraw();
      this.drawTable();
    }

    key(event) {
      const last = this.xs ? this.xs.length - 1 : -1;
      const now = this.cursor === null ? last : this.cursor;
      const to = {ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, Home: 0, End: last,
        PageUp: now + 10, PageDown: now - 10}[event.key];
      if (to === undefined || last < 0) return;
      event.preventDefault();
      this.cursor = Math.min(last, Math.max(0, to));
      this.redraw();
    }

    point(event) {
      if (!this.xs || !this.xs.length || !this.scale) return;
      const box = this.area.getBoundingClientRect();
      const x = this.scale.back(event.clientX - box.left);
      let best = 0;
      this.xs.forEach((value, place) => { if (Math.abs(value - x) < Math.abs(this.xs[best] - x)) best = place; });
      this.cursor = best;
      this.redraw();
    }

    redraw() {
      if (!this.series) return;
      const {format, range, label} = this.options;
      const shown = this.series.filter((line) => !this.hidden.has(line.name));
      const width = Math.max(240, this.area.clientWidth), height = 200, left = 52, right = 8, top = 10, bottom = 30;
      const ys = [...shown.flatMap((line) => line.points.map((point) => point[1])), ...this.bases.map((base) => base.y)].filter(isNumber);
      const [low, high] = range(ys.length ? ys : [0]);
      const first = Math.min(0, ...this.xs), last = Math.max(1, ...this.xs);
      const x = (value) => left + (value - first) / (last - first) * (width - left - right);
      const y = (value) => top + (high - value) / (high - low || 1) * (height - top - bottom);
      this.scale = {back: (pixel) => first + (pixel - left) / (width - left - right) * (last - first)};
      const picture = draw("svg", {viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true"});
      for (const tick of ticks(low, high, 4)) {
        picture.append(draw("line", {class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
          draw("text", {x: left - 8, y: y(tick) + 4, "text-anchor": "end"}, format(tick)));
      }
      for (const tick of ticks(first, last, Math.max(2, Math.floor(width / 110)))) {
        if (Number.isInteger(tick)) picture.append(draw("text", {x: x(tick), y: height - 12, "text-anchor": "middle"}, tick.toLocaleString("en")));
      }
      picture.append(draw("text", {x: width - right, y: height, "text-anchor": "end"}, "exchange"));
      for (const base of this.bases) {
        if (!isNumber(base.y)) continue;
        picture.append(draw("line", {class: base.kind || "base", x1: left, x2: width - right, y1: y(base.y), y2: y(base.y)}),
          draw("text", {class: "base-name", x: width - right - 4, y: y(base.y) - 5, "text-anchor": "end"}, `${base.name} ${format(base.y)}`));
      }
      for (const line of shown) {
        let path = "", isOpen = false;
        for (const [at, value] of line.points) {
          if (isNumber(value)) path += `${isOpen ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
          isOpen = isNumber(value);
        }
        const drawn = draw("path", {class: line.faint ? "line faint" : "line", stroke: line.colour, d: path});
        if (line.dash) drawn.setAttribute("stroke-dasharray", line.dash);
        picture.append(drawn);
        if (line.points.length < 40 && !line.faint) {
          for (const [at, value] of line.points) if (isNumber(value)) picture.append(draw("circle", {cx: x(at), cy: y(value), r: 2.5, fill: line.colour}));
        }
      }
      const place = this.cursor === null ? this.xs.length - 1 : Math.min(this.cursor, this.xs.length - 1);
      const at = this.xs[place];
      const said = at === undefined ? "nothing yet" : `exchange ${at.toLocaleString("en")}: ` + shown.filter((line) => !line.faint || shown.length === 1)
        .map((line) => [line, line.points.find((point) => point[0] === at)])
        .filter(([, point]) => point).map(([line, point]) => `${line.name} ${format(point[1])}`).join(", ");
      if (this.cursor !== null && at !== undefined) {
        picture.append(draw("line", {class: "cursor", x1: x(at), x2: x(at), y1: top, y2: height - bottom}));
      }
      this.area.replaceChildren(picture);
      this.reading.textContent = said;
      this.area.setAttribute("aria-valuemax", String(Math.max(0, this.xs.length - 1)));
      this.area.setAttribute("aria-valuenow", String(Math.max(0, place)));
      this.area.setAttribute("aria-valuetext", said);
      this.drawKeys();
    }

    drawKeys() {
      const wanted = this.series.map((line) => line.name + line.colour).join("\n");
      if (this.drawnKeys === wanted) return;
      this.drawnKeys = wanted;
      this.keys.replaceChildren(...this.series.map((line) => {
        const key = make("i", {"aria-hidden": "true"});
        key.style.background = line.colour;
        if (line.faint) key.style.opacity = "0.4";
        const button = make("button", {type: "button", "aria-pressed": "true"}, key, line.name);
        button.addEventListener("click", () => {
          this.hidden.has(line.name) ? this.hidden.delete(line.name) : this.hidden.add(line.name);
          button.setAttribute("aria-pressed", String(!this.hidden.has(line.name)));
          this.redraw();
        });
        return button;
      }));
    }

    drawTable() {
      if (!this.details.open || !this.series) return;
      const lines = this.series.filter((line) => !line.derived);
      const by = lines.map((line) => new Map(line.points));
      this.rows.replaceChildren(table(this.options.label, ["exchange", ...lines.map((line) => line.name)],
        this.xs.slice(-300).reverse().filter((at) => by.some((found) => found.has(at)))
          .map((at) => [String(at), ...by.map((found) => found.has(at) ? exact(found.get(at)) : "")])));
    }
  }

  // As it stands in the file.
  const exact = (value) => isNumber(value) ? String(value) : "–";

  function table(caption, head, rows) {
    const cells = (tag, row) => make("tr", {}, ...row.map((text, place) =>
      make(place === 0 && tag === "td" ? "th" : tag, {scope: tag === "th" ? "col" : place === 0 ? "row" : ""}, text)));
    const found = make("table", {}, make("caption", {}, caption), make("thead", {}, cells("th", head)),
      make("tbody", {}, ...rows.map((row) => cells("td", row))));
    found.querySelectorAll('td[scope=""]').forEach((cell) => cell.removeAttribute("scope"));
    return found;
  }

  return {Plot, make, table, number, share, bytes, seconds, ticks, isNumber, fromZero, aroundGuess};
})();
