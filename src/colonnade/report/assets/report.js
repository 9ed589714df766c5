"use strict";
// Values under the pointer or the arrow keys, and buttons that switch lines off. Text is only ever set as text.
for (const place of document.querySelectorAll(".curves")) {
  const {x: across, holds, corners: [[left, bottom], [right, top]], lines} = JSON.parse(place.dataset.curves);
  const picture = place.querySelector("svg"), hidden = new Set();
  const add = (parent, name, attributes, text = null) => {
    const space = parent.namespaceURI || "http://www.w3.org/1999/xhtml";
    const made = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    parent.append(made);
    return made;
  };
  const short = (value) => String(Number(value.toPrecision(4)));
  const xs = [...new Set(lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
  if (!xs.length) continue;
  const toX = (value) => left + value * (right - left), toY = (value) => bottom + value * (top - bottom);
  const marks = add(picture, "g", {class: "reading-marks"});
  let cursor = null;

  const area = document.createElement("div");
  const label = picture.getAttribute("aria-label");
  for (const [key, value] of Object.entries({class: "reader", role: "slider", tabindex: "0", "aria-label": `${label} Arrow keys read values.`,
    "aria-valuemin": "0", "aria-valuemax": String(xs.length - 1), "aria-valuenow": String(xs.length - 1)})) area.setAttribute(key, value);
  picture.setAttribute("aria-hidden", "true");
  picture.removeAttribute("role");
  picture.removeAttribute("aria-label");
  place.append(area);
  area.append(picture);
  const reading = add(place, "p", {class: "reading"});

  function draw() {
    const at = xs[cursor === null ? xs.length - 1 : cursor];
    const said = [];
    marks.replaceChildren();
    if (cursor !== null) {
      const box = picture.viewBox.baseVal;
      add(marks, "line", {x1: toX(at), x2: toX(at), y1: box.y, y2: box.y + box.height});
    }
    lines.forEach((line, number) => {
      const point = line.points.filter((one) => holds ? one[0] <= at : one[0] === at).pop();
      if (!point || hidden.has(number)) return;
      const over = holds && at > line.points.at(-1)[0] ? " (its last)" : "";
      said.push(`${line.name} ${short(point[1])}${over}`);
      if (cursor !== null) add(marks, "circle", {cx: toX(point[0]), cy: toY(point[1]), r: 3.5});
    });
    reading.textContent = `${across} ${short(at)}: ${said.join(", ") || "nothing"}`;
    area.setAttribute("aria-valuenow", String(cursor === null ? xs.length - 1 : cursor));
    area.setAttribute("aria-valuetext", reading.textContent);
  }

  function move(to) {
    cursor = to === null ? null : Math.min(xs.length - 1, Math.max(0, to));
    draw();
  }

  area.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), all = picture.viewBox.baseVal;
    const wanted = ((event.clientX - box.left) / box.width * all.width + all.x - left) / (right - left);
    let best = 0;
    xs.forEach((value, number) => { if (Math.abs(value - wanted) < Math.abs(xs[best] - wanted)) best = number; });
    move(best);
  });
  area.addEventListener("pointerleave", () => move(null));
  area.addEventListener("blur", () => move(null));
  area.addEventListener("keydown", (event) => {
    const now = cursor === null ? xs.length - 1 : cursor;
    const to = {ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, Home: 0, End: xs.length - 1,
      PageUp: now + 10, PageDown: now - 10}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(to);
  });

  if (lines.length > 1) {
    const keys = document.createElement("div");
    keys.setAttribute("class", "keys");
    keys.setAttribute("role", "group");
    keys.setAttribute("aria-label", "Lines to show");
    lines.forEach((line, number) => {
      const key = add(keys, "button", {type: "button", "aria-pressed": "true"});
      // A piece of the line itself: its colour and its dash.
      const piece = document.createElementNS(picture.namespaceURI, "svg");
      for (const [name, value] of Object.entries({viewBox: "0 0 24 8", "aria-hidden": "true"})) piece.setAttribute(name, value);
      const drawn = picture.querySelector(`[data-curve="${number}"] path`);
      if (drawn) add(piece, "path", {d: "M0 4H24", style: drawn.getAttribute("style")});
      key.append(piece);
      key.append(line.name);
      key.addEventListener("click", () => {
        hidden.has(number) ? hidden.delete(number) : hidden.add(number);
        key.setAttribute("aria-pressed", String(!hidden.has(number)));
        for (const part of picture.querySelectorAll(`[data-curve="${number}"]`)) part.style.display = hidden.has(number) ? "none" : "";
        draw();
      });
    });
    place.prepend(keys);
    for (const part of picture.querySelectorAll("[data-curve=legend]")) part.style.display = "none";
  }
  draw();
}
