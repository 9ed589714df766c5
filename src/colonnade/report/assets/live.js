"use strict";
// The live page: events of a run directory in, lanes and charts out.
(() => {
  const {Plot, make, table, number, share, bytes, seconds, ticks, isNumber, fromZero, aroundGuess} = Charts;
  const find = (id) => document.getElementById(id);
  const LOWER = new Set(["loss", "rmse", "mae"]);
  const BAD = new Set(["refused", "fault", "diverged", "absent", "starving", "restarted"]);
  const SAID = {absent: "absent", back: "back", starving: "always late", refused: "refused", diverged: "diverged",
    fault: "fault", restarted: "restarted", resumed: "resumed", skipped: "skipped"};

  const run = {about: null, start: null, card: null, end: null, exchanges: [], evaluations: [], skipped: [], marks: [],
    lanes: new Map(), own: [], windows: [], isLive: true, isConnected: false};
  const view = {last: 25, cursor: null};

  const names = () => {
    const found = new Set([...(run.about ? run.about.parties : []), ...run.lanes.keys()]);
    if (run.exchanges.length) Object.keys(run.exchanges[run.exchanges.length - 1].bytes_up || {}).forEach((name) => found.add(name));
    return [...found].sort();
  };
  const colourOf = (name) => {
    const palette = run.about ? run.about.colours : ["#0072b2"], place = names().indexOf(name);
    return palette[(place < 0 ? 0 : place) % palette.length];
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const total = (table) => Object.values(table || {}).reduce((sum, value) => sum + value, 0);
  const newest = (list) => list[list.length - 1];

  // ---- events ---------------------------------------------------------------------------------
  const handlers = {
    run: (content) => { run.about = content; },
    card: (content) => { run.card = content; },
    end: (content) => { run.end = content; },
    alive: () => {},
    closed: () => { run.isLive = false; source.close(); },
    metrics: ({reset, lines}) => {
      if (reset) Object.assign(run, {exchanges: [], evaluations: [], skipped: [], end: null});
      for (const line of lines) {
        if (line.kind === "exchange") run.exchanges.push(line);
        else if (line.kind === "evaluation") run.evaluations.push(line);
        else if (line.kind === "skipped") run.skipped.push(line);
      }
      // A page that stays open for days keeps every second point of the older half.
      if (run.exchanges.length > 4000) run.exchanges = run.exchanges.filter((line, place) => place > 2000 || place % 2);
    },
    timeline: ({reset, lines}) => {
      if (reset) Object.assign(run, {lanes: new Map(), own: [], windows: [], marks: []});
      for (const line of lines) {
        if (line.kind === "start") run.start = line;
        else if (line.kind === "mark") run.marks.push(line);
        else if (line.kind === "intervals") keep(line);
      }
    },
  };

  function keep(line) {
    const window = {exchange: line.exchange, begin: Infinity, end: -Infinity};
    const add = (place, state, [begin, end, awaited]) => {
      place.push({state, begin, end, awaited});
      window.begin = Math.min(window.begin, begin);
      window.end = Math.max(window.end, end);
    };
    for (const [party, states] of Object.entries(line.parties || {})) {
      if (!run.lanes.has(party)) run.lanes.set(party, []);
      for (const [state, spans] of Object.entries(states)) spans.forEach((span) => add(run.lanes.get(party), state, span));
    }
    for (const [state, spans] of Object.entries(line.label_holder || {})) spans.forEach((span) => add(run.own, state, span));
    if (window.end < window.begin) return;
    const before = newest(run.windows);
    if (before && line.exchange - before.exchange <= 1) window.begin = Math.min(window.begin, before.end);
    run.windows.push(window);
  }

  let isDue = false;
  function redraw() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => { isDue = false; drawAll(); });
  }

  const source = new EventSource("events");
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => {
      run.isConnected = true;
      handle(JSON.parse(event.data));
      redraw();
    });
  }
  source.onerror = () => { run.isConnected = false; redraw(); };
  source.onopen = () => {
    // After a break everything comes anew.
    Object.assign(run, {exchanges: [], evaluations: [], skipped: [], marks: [], lanes: new Map(), own: [], windows: []});
    run.isConnected = true;
  };

  // ---- words ----------------------------------------------------------------------------------
  function metric() {
    const wanted = (run.end && run.end.headline) || (run.start && run.start.metric);
    const line = newest(run.evaluations), known = line ? Object.keys(line.metrics) : [];
    return known.includes(wanted) ? wanted : known.find((name) => name !== "loss") || "loss";
  }
  const shownMetric = (name) => ({auc: "AUC", r2: "R²", f1: "F1"}[name] || name);

  function drawHead() {
    const about = run.about;
    if (about) {
      find("title").textContent = about.name;
      document.title = `${about.name}: live`;
      find("about").textContent = [about.method, `${names().length} parties`, about.label_holder && `labels at ${about.label_holder}`,
        about.fabric === "simulated" ? "on a simulated clock" : about.fabric === "grpc" ? "over the network" : "in one process"]
        .filter(Boolean).join(" · ");
    }
    let state = "waiting", said = "waiting for the run";
    if (run.end) {
      const why = run.end.stopped_by;
      state = ["refused", "diverged", "fault"].includes(why) ? "failed" : "ended";
      said = state === "failed" ? `stopped: ${why}` : why === "interrupted" ? "interrupted" : "finished";
    } else if (!run.isConnected || !run.isLive) [state, said] = ["waiting", run.isLive ? "connection lost, trying again" : "the service has ended"];
    else if (run.exchanges.length || run.windows.length) [state, said] = ["running", "running"];
    if (find("status").dataset.state !== state || find("status-text").textContent !== said) {
      find("status").dataset.state = state;
      find("status-text").textContent = said;
    }
  }

  function tile(id, value, shown, sub = "") {
    const place = find(`tile-${id}`);
    place.textContent = shown;
    place.dataset.value = String(value);
    find(`tile-${id}-sub`).textContent = sub;
  }

  function drawTiles() {
    const last = newest(run.exchanges), evaluated = newest(run.evaluations), name = metric();
    if (last) {
      const most = run.start && run.start.exchanges;
      tile("exchange", last.exchange, last.exchange.toLocaleString("en"), [most ? `of ${most.toLocaleString("en")}` : "", seconds(last.elapsed)].filter(Boolean).join(" · "));
      tile("loss", last.loss, number(last.loss), "of the newest batch");
      const up = total(last.bytes_up), down = total(last.bytes_down);
      tile("bytes", up + down, bytes(up + down), `${bytes(up)} up, ${bytes(down)} down`);
    }
    find("tile-quality-name").textContent = evaluated ? `Validation ${shownMetric(name)}` : "Quality";
    if (evaluated) {
      const values = run.evaluations.map((line) => line.metrics[name]).filter(isNumber);
      const best = LOWER.has(name) ? Math.min(...values) : Math.max(...values);
      const guess = run.start && run.start.guess && run.start.guess.metrics[name];
      tile("quality", evaluated.metrics[name], number(evaluated.metrics[name]), `best ${number(best)}${isNumber(guess) ? `, a guess ${number(guess)}` : ""}`);
    }
    const waits = waitedFor(), all = total(waits);
    const [most] = Object.entries(waits).sort((a, b) => b[1] - a[1]);
    if (most) tile("held", most[0], most[0], `${share(most[1] / all)} of the label holder's waiting${missed(last)}`);
  }

  // Who was left out of how many questions so far, and who always comes too late.
  function missed(line) {
    const starving = new Set(line && Array.isArray(line.starving) ? line.starving : []);
    const found = Object.entries((line && line.left_out) || {}).filter(([, times]) => isNumber(times)).map(([party, times]) =>
      `${party} left out ${times.toLocaleString("en")} times${starving.has(party) ? ", always late" : ""}`);
    return found.length ? ` · ${found.join(" · ")}` : "";
  }

  function waitedFor() {
    const found = {};
    for (const item of run.own) if (item.state === "waiting" && item.awaited) found[item.awaited] = (found[item.awaited] || 0) + item.end - item.begin;
    return found;
  }

  // ---- lanes ----------------------------------------------------------------------------------
  function span() {
    if (!run.windows.length) return null;
    const end = Math.max(...run.windows.slice(-50).map((window) => window.end));
    const last = newest(run.windows).exchange;
    const from = view.last ? run.windows.find((window) => window.exchange > last - view.last) : run.windows[0];
    return {begin: from.begin, end: Math.max(end, from.begin + 1e-6)};
  }

  function cover(columns, begin, end, {begin: low, end: high}) {
    const scale = columns.length / (high - low);
    const from = Math.max(0, (begin - low) * scale), to = Math.min(columns.length, (end - low) * scale);
    if (to <= from) return;
    const first = Math.floor(from), last = Math.min(columns.length - 1, Math.floor(to));
    if (first === last) { columns[first] += to - from; return; }
    columns[first] += first + 1 - from;
    for (let place = first + 1; place < last; place++) columns[place] += 1;
    columns[last] += to - last;
  }

  // Absences as the marks tell of them: from "absent" to "back", or until now.
  function absences(party, until) {
    const found = [];
    let since = null;
    for (const mark of run.marks) {
      if (mark.party !== party) continue;
      if (mark.what === "absent" && since === null) since = mark.elapsed;
      if (mark.what === "back" && since !== null) { found.push([since, mark.elapsed]); since = null; }
      if (mark.what === "refused") found.push([mark.elapsed, Infinity]);
    }
    if (since !== null) found.push([since, until]);
    return found;
  }

  function drawStrip(canvas, party, range) {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(canvas.clientWidth * ratio)), height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    canvas.width = width;
    canvas.height = height;
    const pen = canvas.getContext("2d"), items = party === null ? run.own : run.lanes.get(party) || [];
    const columns = (test) => {
      const found = new Float32Array(width);
      for (const item of items) if (item.end > range.begin && item.begin < range.end && test(item)) cover(found, item.begin, item.end, range);
      return found;
    };
    const known = new Float32Array(width);
    for (const item of run.windows) cover(known, item.begin, item.end, range);
    const layers = [];
    if (party === null) {
      layers.push([columns((item) => item.state === "evaluating" || item.state === "keeping"), css("--muted"), 1]);
      for (const name of names()) layers.push([columns((item) => item.state === "waiting" && item.awaited === name), colourOf(name), 0.5]);
      layers.push([columns((item) => item.state === "waiting" && !item.awaited), css("--rest"), 1]);
    } else {
      layers.push([columns((item) => item.state === "computing"), colourOf(party), 1]);
      const absent = columns((item) => item.state === "absent");
      for (const [begin, end] of absences(party, range.end)) cover(absent, begin, Math.min(end, range.end), range);
      layers.push([absent, hatch(pen, ratio), 1]);
      layers.push([columns((item) => item.state === "sending"), colourOf(party), 0.45]);
    }
    const rest = css("--rest"), ink = css("--ink");
    // Few and long: every column has one state, its edges are soft. Many and short: shares, stacked.
    const isStacked = items.filter((item) => item.end > range.begin && item.begin < range.end).length > width / (4 * ratio);
    for (let x = 0; x < width; x++) {
      const here = Math.min(1, known[x]);
      let left = 1, bottom = height;
      for (const [values, colour, alpha] of layers) {
        const part = Math.min(left, values[x]);
        if (part < 0.004) continue;
        const tall = isStacked ? part * height : height;
        pen.globalAlpha = isStacked ? alpha : alpha * part;
        pen.fillStyle = colour;
        pen.fillRect(x, isStacked ? bottom - tall : 0, 1, tall);
        bottom -= isStacked ? tall : 0;
        left -= part;
      }
      if (left > 0.004 && here > 0.004) {
        pen.globalAlpha = (party === null ? 0.88 : 1) * here * (isStacked ? 1 : left);
        pen.fillStyle = party === null ? ink : rest;
        pen.fillRect(x, 0, 1, Math.max(0, bottom));
      }
    }
    pen.globalAlpha = 1;
    for (const mark of run.marks) {
      if (mark.party !== party || mark.elapsed < range.begin || mark.elapsed > range.end) continue;
      const x = Math.min(width - 6 * ratio, Math.max(6 * ratio, (mark.elapsed - range.begin) / (range.end - range.begin) * width));
      pen.fillStyle = BAD.has(mark.what) ? css("--bad") : css("--good");
      pen.strokeStyle = css("--paper");
      pen.lineWidth = 2 * ratio;
      pen.beginPath();
      pen.moveTo(x - 6 * ratio, 0);
      pen.lineTo(x + 6 * ratio, 0);
      pen.lineTo(x, 11 * ratio);
      pen.closePath();
      pen.stroke();
      pen.fill();
    }
    if (view.cursor !== null) {
      pen.fillStyle = ink;
      pen.fillRect(Math.round(view.cursor * (width - ratio)), 0, ratio, height);
    }
  }

  function hatch(pen, ratio) {
    const tile = document.createElement("canvas"), size = Math.round(6 * ratio);
    tile.width = tile.height = size;
    const inner = tile.getContext("2d");
    inner.strokeStyle = css("--bad");
    inner.lineWidth = 1.5 * ratio;
    inner.beginPath();
    inner.moveTo(-1, size + 1);
    inner.lineTo(size + 1, -1);
    inner.stroke();
    return pen.createPattern(tile, "repeat");
  }

  let strips = [];
  function layRows() {
    const wanted = JSON.stringify([names(), run.about]);
    if (layRows.laid === wanted) return;
    layRows.laid = wanted;
    const rows = find("lane-rows"), holder = run.about && run.about.label_holder;
    strips = [];
    rows.replaceChildren();
    const row = (party, name, note) => {
      const chip = make("span", {class: "chip"}), canvas = make("canvas", {role: "img", "aria-label": `Lane of ${name}; the table below has its seconds`});
      chip.style.background = party === null ? "var(--ink)" : colourOf(party);
      const label = make("span", {title: name}, name);
      if (note) label.append(" ", make("small", {}, note));
      const shareOf = make("div", {class: "lane-share"});
      rows.append(make("div", {class: "lane"}, make("div", {class: "lane-name"}, chip, label), make("div", {class: "lane-strip"}, canvas), shareOf));
      canvas.addEventListener("pointermove", (event) => point(event, canvas));
      canvas.addEventListener("pointerleave", () => { view.cursor = null; drawLanes(); });
      strips.push({party, canvas, share: shareOf});
    };
    rows.append(make("div", {class: "lane lane-head", "aria-hidden": "true"}, make("div", {class: "lane-share"}, "computing")));
    row(null, "label holder", holder && names().includes(holder) ? `at ${holder}` : "");
    for (const name of names()) row(name, name, name === holder ? "own block" : "");
    const axis = make("div", {class: "lane-axis", role: "slider", tabindex: "0", "aria-label": "Moment in the run", "aria-valuemin": "0",
      "aria-valuemax": "100", "aria-valuenow": "100"}, make("canvas", {"aria-hidden": "true"}));
    axis.addEventListener("keydown", moveBy);
    axis.addEventListener("blur", () => { view.cursor = null; drawLanes(); });
    axis.id = "lane-axis";
    rows.append(make("div", {class: "lane"}, axis));
    strips.forEach(({canvas}) => new ResizeObserver(redraw).observe(canvas));
  }

  function point(event, canvas) {
    const box = canvas.getBoundingClientRect();
    view.cursor = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    drawLanes();
  }

  function moveBy(event) {
    const now = view.cursor === null ? 1 : view.cursor;
    const to = {ArrowLeft: now - 0.01, ArrowDown: now - 0.01, ArrowRight: now + 0.01, ArrowUp: now + 0.01, Home: 0, End: 1,
      PageUp: now + 0.1, PageDown: now - 0.1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    view.cursor = Math.min(1, Math.max(0, to));
    drawLanes();
  }

  function stateAt(party, moment, range) {
    const items = party === null ? run.own : run.lanes.get(party) || [];
    const here = items.filter((item) => item.begin <= moment && moment < item.end);
    if (party === null) return here.length ? (here[0].awaited ? `waits for ${here[0].awaited}` : here[0].state) : "computing";
    if (absences(party, range.end).some(([begin, end]) => begin <= moment && moment <= end)) return "absent";
    return ["computing", "absent", "sending"].find((state) => here.some((item) => item.state === state)) || "waiting";
  }

  function drawLanes() {
    layRows();
    const range = span(), axis = find("lane-axis");
    if (!range || !axis) return;
    for (const {party, canvas, share: place} of strips) {
      drawStrip(canvas, party, range);
      place.textContent = party === null ? "" : share(computingShare(party, range));
    }
    drawAxis(axis.firstChild, range);
    const at = view.cursor === null ? 1 : view.cursor, moment = range.begin + at * (range.end - range.begin);
    const said = `${seconds(moment)}: ` + [["label holder", null], ...names().map((name) => [name, name])]
      .map(([name, party]) => `${name} ${stateAt(party, moment, range)}`).join(", ");
    axis.setAttribute("aria-valuenow", String(Math.round(100 * at)));
    axis.setAttribute("aria-valuetext", view.cursor === null ? seconds(moment) : said);
    find("lane-reading").textContent = view.cursor === null ? `${seconds(range.end - range.begin)} of the run, up to ${seconds(range.end)}` : said;
  }

  function computingShare(party, range) {
    let sum = 0;
    for (const item of run.lanes.get(party) || []) {
      if (item.state === "computing") sum += Math.max(0, Math.min(item.end, range.end) - Math.max(item.begin, range.begin));
    }
    const known = view.last ? range.end - range.begin : run.windows.reduce((all, item) => all + item.end - item.begin, 0);
    return Math.min(1, sum / (known || 1));
  }

  function drawAxis(canvas, range) {
    const ratio = window.devicePixelRatio || 1, width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    canvas.width = width;
    canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    const pen = canvas.getContext("2d");
    pen.font = `${11 * ratio}px system-ui, sans-serif`;
    pen.fillStyle = css("--muted");
    const found = ticks(range.begin, range.end, Math.max(2, Math.floor(canvas.clientWidth / 120)));
    const step = found.length > 1 ? found[1] - found[0] : 1, digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
    for (const tick of found) {
      const x = (tick - range.begin) / (range.end - range.begin) * width, text = `${tick.toFixed(digits)} s`;
      const wide = pen.measureText(text).width;
      pen.fillRect(Math.min(width - ratio, x), 0, ratio, 4 * ratio);
      pen.fillText(text, Math.min(width - wide, Math.max(0, x - wide / 2)), 16 * ratio);
    }
  }

  function drawLaneTable() {
    if (!find("lane-table").open) return;
    const waits = waitedFor(), last = newest(run.exchanges);
    const sum = (items, state) => items.filter((item) => item.state === state).reduce((all, item) => all + item.end - item.begin, 0);
    const rows = names().map((name) => {
      const items = run.lanes.get(name) || [];
      return [name, ...["computing", "sending", "absent"].map((state) => seconds(sum(items, state))), seconds(waits[name] || 0),
        last ? seconds((last.computing || {})[name]) : "–"];
    });
    rows.unshift(["label holder", "–", "–", "–", "–", "–"]);
    find("lane-table").querySelector(".scroll").replaceChildren(table(
      "Seconds in the exchanges that the timeline keeps; the last column is of the whole run",
      ["participant", "computing", "sending", "absent", "label holder waited for it", "computing, whole run"], rows));
  }

  // ---- charts ---------------------------------------------------------------------------------
  const plots = {
    quality: new Plot(find("quality"), {label: "Quality on the validation part", range: aroundGuess}),
    loss: new Plot(find("loss"), {label: "Loss"}),
    bytes: new Plot(find("bytes"), {label: "Bytes by party, both ways", format: bytes}),
    privacy: new Plot(find("privacy"), {label: "Privacy spent"}),
    delays: new Plot(find("delays"), {label: "Delay of embeddings in uploads"}),
  };

  function smooth(points) {
    const found = [];
    let mean = null;
    for (const [at, value] of points) {
      if (isNumber(value)) mean = mean === null ? value : 0.9 * mean + 0.1 * value;
      found.push([at, mean]);
    }
    return found;
  }

  // One line for all whose budgets are the same.
  function limits(budgets) {
    const found = new Map();
    for (const [party, {epsilon}] of Object.entries(budgets)) if (isNumber(epsilon)) found.set(epsilon, [...(found.get(epsilon) || []), party]);
    return [...found].map(([epsilon, parties]) => ({name: `budget of ${parties.join(", ")}: ε`, y: epsilon, kind: "budget"}));
  }

  function drawCharts() {
    const name = metric(), accent = css("--accent"), muted = css("--muted");
    const guess = run.start && run.start.guess, bases = [];
    if (guess && isNumber(guess.metrics[name])) bases.push({name: guess.who, y: guess.metrics[name]});
    for (const row of (run.card && run.card.metric === name ? run.card.rows : [])) {
      if (/ alone$/.test(row.who)) bases.push({name: row.who, y: row.value});
    }
    plots.quality.options.range = LOWER.has(name) ? fromZero : aroundGuess;
    plots.quality.show([{name: shownMetric(name), colour: accent, points: run.evaluations.map((line) => [line.exchange, line.metrics[name]])}], bases);
    const losses = run.exchanges.map((line) => [line.exchange, line.loss]);
    const series = [{name: "batch", colour: accent, faint: true, points: losses},
      {name: "smoothed", colour: accent, derived: true, points: smooth(losses)}];
    if (run.evaluations.length) series.push({name: "validation", colour: css("--ink"), dash: "5 3", points: run.evaluations.map((line) => [line.exchange, line.metrics.loss])});
    plots.loss.show(series, guess && isNumber(guess.metrics.loss) ? [{name: guess.who, y: guess.metrics.loss}] : []);
    plots.bytes.show(names().map((party) => ({name: party, colour: colourOf(party),
      points: run.exchanges.map((line) => [line.exchange, ((line.bytes_up || {})[party] || 0) + ((line.bytes_down || {})[party] || 0)])})));
    const spent = run.exchanges.filter((line) => line.privacy);
    find("privacy-section").hidden = !spent.length;
    if (spent.length) {
      const budgets = (run.start && run.start.budgets) || {};
      const who = names().filter((party) => spent.some((line) => line.privacy[party]));
      plots.privacy.show(who.map((party) => ({name: `${party} ε`, colour: colourOf(party),
        points: spent.filter((line) => line.privacy[party]).map((line) => [line.exchange, line.privacy[party].epsilon])})),
        limits(budgets));
    }
    const delayed = run.exchanges.filter((line) => line.delays);
    find("delays-section").hidden = !delayed.length;
    if (delayed.length) {
      plots.delays.show([{name: "mean", colour: accent, points: delayed.map((line) => [line.exchange, line.delays.mean])},
        {name: "largest", colour: muted, dash: "5 3", points: delayed.map((line) => [line.exchange, line.delays.largest])}]);
    }
  }

  function arrange() {
    const charts = document.querySelector(".charts");
    charts.dataset.count = String(charts.querySelectorAll("section:not([hidden])").length);
  }

  function drawMarks() {
    const found = [...run.marks, ...run.skipped.map((line) => ({what: "skipped", elapsed: null, exchange: line.exchange, party: null,
      text: `${line.what} left out${(line.waits_for || []).length ? `: one waits for ${line.waits_for.join(", ")}` : ""}`}))];
    const end = run.end && (run.end.refusal || run.end.fault);
    if (end && !run.marks.some((mark) => mark.what === "refused" || mark.text === end.reason)) {
      found.push({what: run.end.stopped_by, elapsed: run.end.elapsed_seconds, exchange: run.end.exchanges, party: end.party, text: end.reason});
    }
    for (const text of (run.end && run.end.warnings) || []) {
      found.push({what: "warning", elapsed: run.end.elapsed_seconds, exchange: run.end.exchanges, party: null, text});
    }
    if (!found.length) return;
    found.sort((a, b) => b.exchange - a.exchange);
    find("marks").replaceChildren(...found.slice(0, 200).map((mark) => make("li", {},
      make("time", {}, isNumber(mark.elapsed) ? seconds(mark.elapsed) : `exchange ${mark.exchange}`),
      make("b", {class: BAD.has(mark.what) ? "bad" : mark.what === "back" ? "ok" : "warn"}, SAID[mark.what] || String(mark.what)),
      make("span", {}, mark.text || (mark.party ? String(mark.party) : `after exchange ${mark.exchange}`)))));
  }

  function drawAll() {
    drawHead();
    drawTiles();
    drawLanes();
    drawLaneTable();
    drawCharts();
    arrange();
    drawMarks();
    document.body.dataset.exchange = run.exchanges.length ? String(newest(run.exchanges).exchange) : "";
  }

  find("zoom").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    view.last = Number(button.dataset.last);
    find("zoom").querySelectorAll("button").forEach((item) => item.setAttribute("aria-pressed", String(item === button)));
    redraw();
  });
  find("lane-table").addEventListener("toggle", drawLaneTable);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
})();
