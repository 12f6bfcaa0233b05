"use strict";
// Draws every <svg data-figure="..."> of the page from the numbers in #data. Nothing is computed here but smoothing.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const state = { metric: 0, axis: "x", smooth: 0, seeds: false, hidden: new Set() };
  const tip = document.getElementById("tip");
  const colour = (i) => `var(--a${i % 12})`;
  const dash = (i) => (i >= 6 ? "6 3" : null); // beyond six, colours alone are hard to tell apart
  const counted = (one) => (one.diverged ? `${one.runs} (${one.diverged} more diverged)` : one.runs);
  const visible = (list) => list.filter((one) => !state.hidden.has(one.algorithm));
  const metric = () => data.metrics[state.metric];
  const words = (name) => name.replace("episode_return/", "episode return: ").replaceAll("_", " ");

  function el(tag, attributes = {}, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  function human(value) {
    const size = Math.abs(value);
    if (size >= 1e4 || (size >= 1e3 && value % 1000 === 0)) {
      for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
        if (size >= unit) return `${+(value / unit).toPrecision(3)}${name}`;
    }
    return size && size < 1e-3 ? value.toExponential(1).replace(".0", "") : `${+value.toPrecision(4)}`;
  }

  const clock = (s) => (s >= 5400 ? `${+(s / 3600).toPrecision(3)} h` : s >= 90 ? `${+(s / 60).toPrecision(3)} min` : `${+s.toPrecision(3)} s`);
  const interval = ([value, low, high]) => `${human(value)}  [${human(low)}, ${human(high)}]`;

  function ticks(low, high, count) {
    const raw = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 2.5, 5, 10].find((one) => one * power >= raw * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(+(i * step).toPrecision(12));
    return found;
  }

  function smoothed(values) {
    let kept = 0, weight = 0; // an exponential mean, without the bias of its start
    return values.map((value) => {
      kept = state.smooth * kept + (1 - state.smooth) * value;
      weight = state.smooth * weight + (1 - state.smooth);
      return kept / weight;
    });
  }

  function show(event, head, rows) {
    tip.replaceChildren();
    const title = document.createElement("b");
    title.textContent = head;
    tip.append(title);
    for (const [number, name, value] of rows) {
      const row = document.createElement("div");
      const parts = ["i", "span", "span"].map((tag) => document.createElement(tag));
      if (number !== null) parts[0].style.background = colour(number);
      parts[1].textContent = name;
      parts[2].textContent = value;
      row.append(...parts);
      tip.append(row);
    }
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 6))}px`;
  }
  const hide = () => { tip.hidden = true; };

  function hoverable(node, head, rows) {
    node.addEventListener("pointermove", (event) => show(event, head, rows));
    node.addEventListener("pointerleave", hide);
    return node;
  }

  // As wide as it is shown, so that all figures have letters of one size.
  const room = (svg, least) => Math.max(least, Math.round(svg.clientWidth || 0));

  function frame(svg, width, height, empty) {
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    if (empty) svg.append(el("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, empty));
  }

  // Curves with bands; `series` have x, y and maybe low, high, seeds.
  function lines(svg, series, { height: tall, xlabel, ylabel, yrange, xtext = human, seeds = false }) {
    const width = room(svg, 240);
    const height = document.body.classList.contains("printing") ? Math.max(170, 0.75 * tall) : tall;
    const box = { left: 50, right: width - 10, top: 8, bottom: height - 38 };
    frame(svg, width, height, series.length ? null : state.axis === "t" ? "wall-clock is not known" : "nothing selected");
    if (!series.length) return;
    const every = series.flatMap((one) => [...(one.low || one.y), ...(one.high || one.y), ...(seeds ? one.seeds.flatMap((s) => s.y) : [])]);
    let [low, high] = yrange || [Math.min(...every), Math.max(...every)];
    if (low === high) [low, high] = [low - 0.5, high + 0.5];
    const xs = series.flatMap((one) => one.x);
    let [first, last] = [Math.min(...xs), Math.max(...xs)];
    if (first === last) [first, last] = [first - 0.5, last + 0.5];
    const px = (x) => box.left + ((x - first) / (last - first)) * (box.right - box.left);
    const py = (y) => box.bottom - ((y - low) / (high - low)) * (box.bottom - box.top);
    const path = (x, y) => x.map((value, i) => `${i ? "L" : "M"}${px(value).toFixed(1)} ${py(y[i]).toFixed(1)}`).join("");
    for (const y of ticks(low, high, height / 55)) {
      svg.append(el("line", { class: "gridline", x1: box.left, x2: box.right, y1: py(y), y2: py(y) }));
      svg.append(el("text", { x: box.left - 7, y: py(y) + 4, "text-anchor": "end" }, human(y)));
    }
    for (const x of ticks(first, last, Math.max(2, Math.min(8, width / 90))))
      svg.append(el("text", { x: px(x), y: box.bottom + 16, "text-anchor": "middle" }, xtext(x)));
    svg.append(el("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    svg.append(el("text", { x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, xlabel));
    if (ylabel) svg.append(el("text", { transform: `translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, ylabel));
    for (const one of series) {
      const style = `fill:${colour(one.algorithm)}`;
      if (one.low && !seeds) svg.append(el("path", { class: "band mark", style, opacity: series.length > 6 ? 0.08 : 0.16, d: `${path(one.x, one.low)}${path([...one.x].reverse(), [...one.high].reverse()).replace("M", "L")}Z` }));
    }
    for (const one of series) {
      const look = { style: `stroke:${colour(one.algorithm)}`, "stroke-dasharray": dash(one.algorithm) };
      if (seeds) for (const run of one.seeds) svg.append(el("path", { class: "seed mark", ...look, d: path(one.x, run.y) }));
      svg.append(el("path", { class: "line mark", ...look, d: path(one.x, one.y) }));
      if (one.x.length === 1) svg.append(el("circle", { class: "mark", cx: px(one.x[0]), cy: py(one.y[0]), r: 4, style: `fill:${colour(one.algorithm)}` }));
    }
    const rule = svg.appendChild(el("line", { class: "rule", y1: box.top, y2: box.bottom, visibility: "hidden" }));
    const area = el("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top, fill: "transparent" });
    const grid = [...new Set(xs)].sort((a, b) => a - b);
    area.addEventListener("pointermove", (event) => {
      const at = area.getBoundingClientRect();
      const x = first + ((event.clientX - at.left) / at.width) * (last - first);
      const nearest = grid.reduce((best, one) => (Math.abs(one - x) < Math.abs(best - x) ? one : best));
      rule.setAttribute("x1", px(nearest));
      rule.setAttribute("x2", px(nearest));
      rule.setAttribute("visibility", "visible");
      const rows = series.map((one) => {
        const i = one.x.reduce((best, value, j) => (Math.abs(value - nearest) < Math.abs(one.x[best] - nearest) ? j : best), 0);
        return [one.y[i], [one.algorithm, data.algorithms[one.algorithm], one.low ? interval([one.y[i], one.low[i], one.high[i]]) : human(one.y[i])]];
      });
      show(event, `${xlabel}: ${xtext(nearest)}`, rows.sort((a, b) => b[0] - a[0]).map((row) => row[1]));
    });
    area.addEventListener("pointerleave", () => { rule.setAttribute("visibility", "hidden"); hide(); });
    svg.append(area);
  }

  // Curves as the controls want them.
  function prepared(curves) {
    const timed = state.axis === "t";
    return visible(curves).filter((one) => !timed || one.t).map((one) => ({
      ...one, x: timed ? one.t : one.x, y: smoothed(one.y), low: one.low && smoothed(one.low), high: one.high && smoothed(one.high),
      seeds: (one.seeds || []).map((run) => ({ ...run, y: smoothed(run.y) })),
    }));
  }
  const horizontal = () => (state.axis === "t" ? { xlabel: "wall-clock of all runs together", xtext: clock } : { xlabel: "environment steps" });

  function bar(svg, x, y, [value, low, high], i, px) {
    const style = `fill:${colour(i)}`;
    svg.append(el("rect", { class: "mark", x: px(low), y: y - 7, width: Math.max(1.5, px(high) - px(low)), height: 14, rx: 3, style, opacity: 0.35 }));
    svg.append(el("rect", { class: "mark", x: px(value) - 1.5, y: y - 9, width: 3, height: 18, rx: 1.5, style }));
  }

  // Pixels for the longest of some names, but no more than `most`.
  const labels = (numbers, most) => Math.round(Math.min(most, 26 + 6.6 * Math.max(4, ...numbers.map((i) => data.algorithms[i].length))));

  function aggregates(svg) {
    const rows = visible(metric().together.aggregates);
    const names = Object.keys(metric().together.aggregates[0].values);
    const width = room(svg, 560), label = labels(rows.map((one) => one.algorithm), 0.3 * width), gap = 26, row = 34, height = 34 + row * Math.max(1, rows.length) + 26;
    const size = (width - label - gap * (names.length - 1)) / names.length;
    frame(svg, width, height, rows.length ? null : "nothing selected");
    rows.forEach((one, r) => svg.append(el("text", { class: "name", x: label - 12, y: 44 + row * r + 4, "text-anchor": "end" }, clipped(data.algorithms[one.algorithm], label / 6.6 - 2))));
    if (rows.length) names.forEach((name, column) => {
      const left = label + column * (size + gap);
      const every = rows.flatMap((one) => one.values[name]);
      let [low, high] = [Math.min(...every), Math.max(...every)];
      const pad = (high - low) * 0.08 || 0.05;
      [low, high] = [low - pad, high + pad];
      const px = (x) => left + ((x - low) / (high - low)) * size;
      svg.append(el("text", { class: "panel", x: left, y: 14 }, name === "IQM" ? name : name[0].toUpperCase() + name.slice(1)));
      for (const x of ticks(low, high, 3)) {
        svg.append(el("line", { class: "gridline", x1: px(x), x2: px(x), y1: 24, y2: height - 22 }));
        svg.append(el("text", { x: px(x), y: height - 6, "text-anchor": "middle" }, human(x)));
      }
      rows.forEach((one, r) => {
        const y = 44 + row * r;
        bar(svg, left, y, one.values[name], one.algorithm, px);
        svg.append(hoverable(el("rect", { x: left, y: y - 14, width: size, height: 28, fill: "transparent" }), name, [[one.algorithm, data.algorithms[one.algorithm], interval(one.values[name])]]));
      });
    });
  }

  function improvement(svg) {
    const both = metric().together.improvement.filter((one) => !state.hidden.has(one.x) && !state.hidden.has(one.y));
    const pairs = both.length > 15 ? both.filter((one) => one.x === both[0].x) : both; // of many, the best with each
    const width = room(svg, 400), side = labels(pairs.flatMap((one) => [one.x, one.y]), 0.3 * width), row = 30, height = 26 + row * Math.max(1, pairs.length) + 26;
    frame(svg, width, height, pairs.length ? null : "nothing selected");
    if (!pairs.length) return;
    const px = (p) => side + p * (width - 2 * side);
    for (const p of [0, 0.25, 0.5, 0.75, 1]) {
      svg.append(el("line", { class: p === 0.5 ? "rule" : "gridline", x1: px(p), x2: px(p), y1: 20, y2: height - 22 }));
      svg.append(el("text", { x: px(p), y: height - 6, "text-anchor": "middle" }, human(p)));
    }
    svg.append(el("text", { x: side - 12, y: 12, "text-anchor": "end" }, "X"), el("text", { x: width - side + 12, y: 12 }, "Y"));
    svg.append(el("text", { x: width / 2, y: 12, "text-anchor": "middle" }, "P(X > Y)"));
    pairs.forEach((one, r) => {
      const y = 38 + row * r;
      svg.append(el("text", { class: "name", x: side - 12, y: y + 4, "text-anchor": "end" }, clipped(data.algorithms[one.x], side / 6.6 - 2)));
      svg.append(el("text", { class: "name", x: width - side + 12, y: y + 4 }, clipped(data.algorithms[one.y], side / 6.6 - 2)));
      bar(svg, side, y, one.p, one.x, px);
      svg.append(hoverable(el("rect", { x: 0, y: y - 14, width, height: 28, fill: "transparent" }), `P(${data.algorithms[one.x]} > ${data.algorithms[one.y]})`, [[one.x, "", interval(one.p)]]));
    });
  }

  const clipped = (name, most) => (name.length > most ? `${name.slice(0, Math.floor(most) - 1)}…` : name);
  const share = (value, low, high) => (high > low ? (value - low) / (high - low) : 0.5);
  const heat = (s) => `color-mix(in srgb, var(--cool) ${Math.round(12 + 88 * s)}%, var(--card))`;

  function sensitivity(svg, index) {
    const one = metric().sensitivity[index];
    const scores = one.points.map((point) => point.score[0]);
    const [low, high] = [Math.min(...scores), Math.max(...scores)];
    const levels = one.names.map((_, i) => [...new Set(one.points.map((p) => p.values[i]))].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : `${a}` < `${b}` ? -1 : 1)));
    const head = (point) => one.names.map((name, i) => `${name} = ${point.values[i]}`).join(", ");
    const tell = (node, point) => hoverable(node, head(point), [[null, words(metric().name), interval(point.score)], [null, "runs", counted(point)]]);
    const whole = one.names.length === 2 && levels[0].length * levels[1].length === one.points.length;
    if (one.names.length === 1) return alone(svg, one, levels[0], tell);
    if (whole) return heatmap(svg, one, levels, low, high, tell);
    parallel(svg, one, levels, low, high, tell);
  }

  function alone(svg, one, levels, tell) {
    const width = room(svg, 320), height = 280, box = { left: 54, right: width - 20, top: 12, bottom: height - 40 };
    frame(svg, width, height);
    const every = one.points.flatMap((point) => point.score);
    let [low, high] = [Math.min(...every), Math.max(...every)];
    if (low === high) [low, high] = [low - 0.5, high + 0.5];
    const px = (value) => box.left + ((levels.indexOf(value) + 0.5) / levels.length) * (box.right - box.left);
    const py = (y) => box.bottom - ((y - low) / (high - low)) * (box.bottom - box.top);
    for (const y of ticks(low, high, 5)) {
      svg.append(el("line", { class: "gridline", x1: box.left, x2: box.right, y1: py(y), y2: py(y) }));
      svg.append(el("text", { x: box.left - 7, y: py(y) + 4, "text-anchor": "end" }, human(y)));
    }
    const sorted = [...one.points].sort((a, b) => levels.indexOf(a.values[0]) - levels.indexOf(b.values[0]));
    svg.append(el("path", { class: "line mark", style: "stroke:var(--faint);stroke-width:1.4", d: sorted.map((p, i) => `${i ? "L" : "M"}${px(p.values[0])} ${py(p.score[0])}`).join("") }));
    levels.forEach((value) => svg.append(el("text", { x: px(value), y: box.bottom + 16, "text-anchor": "middle" }, typeof value === "number" ? human(value) : clipped(value, 14))));
    for (const point of sorted) {
      const x = px(point.values[0]);
      svg.append(el("line", { class: "mark", x1: x, x2: x, y1: py(point.score[1]), y2: py(point.score[2]), style: "stroke:var(--a0)", "stroke-width": 5, opacity: 0.35, "stroke-linecap": "round" }));
      svg.append(tell(el("circle", { class: "mark", cx: x, cy: py(point.score[0]), r: 5.5, style: "fill:var(--a0)" }), point));
    }
    svg.append(el("text", { x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, one.names[0]));
  }

  function heatmap(svg, one, levels, low, high, tell) {
    const [columns, rows] = levels;
    const width = room(svg, 320), left = 80, top = 8, tall = Math.max(26, Math.min(54, 230 / rows.length)), height = top + tall * rows.length + 44;
    const wide = (width - left - 8) / columns.length;
    frame(svg, width, height);
    for (const point of one.points) {
      const [x, y] = [left + columns.indexOf(point.values[0]) * wide, top + (rows.length - 1 - rows.indexOf(point.values[1])) * tall];
      const s = share(point.score[0], low, high);
      svg.append(tell(el("rect", { class: "mark", x: x + 1, y: y + 1, width: wide - 2, height: tall - 2, rx: 4, style: `fill:${heat(s)}` }), point));
      if (wide > 38) svg.append(el("text", { x: x + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle", style: `fill:${s > 0.45 ? "#fff" : "var(--ink)"};pointer-events:none` }, human(+point.score[0].toPrecision(3))));
    }
    columns.forEach((value, i) => svg.append(el("text", { x: left + (i + 0.5) * wide, y: height - 24, "text-anchor": "middle" }, typeof value === "number" ? human(value) : clipped(value, 12))));
    rows.forEach((value, i) => svg.append(el("text", { x: left - 8, y: top + (rows.length - i - 0.5) * tall + 4, "text-anchor": "end" }, typeof value === "number" ? human(value) : clipped(value, 10))));
    svg.append(el("text", { x: left + (width - left) / 2, y: height - 5, "text-anchor": "middle" }, one.names[0]));
    svg.append(el("text", { transform: `translate(12 ${top + (tall * rows.length) / 2}) rotate(-90)`, "text-anchor": "middle" }, one.names[1]));
  }

  function parallel(svg, one, levels, low, high, tell) {
    const width = room(svg, 320), height = 300, top = 26, bottom = height - 26, left = 46, right = width - 46;
    frame(svg, width, height);
    const axes = [...one.names, words(metric().name)];
    const px = (i) => left + (i / (axes.length - 1)) * (right - left);
    const scales = levels.map((values) => {
      if (values.some((value) => typeof value !== "number")) return (value) => (values.indexOf(value) + 0.5) / values.length;
      const log = values[0] > 0 && values.at(-1) / values[0] >= 20 ? Math.log : (value) => value; // spans decades: logarithmic
      return (value) => share(log(value), log(values[0]), log(values.at(-1)));
    });
    const py = (s) => bottom - s * (bottom - top);
    for (const point of [...one.points].sort((a, b) => a.score[0] - b.score[0])) {
      const s = share(point.score[0], low, high);
      const at = [...point.values.map((value, i) => scales[i](value)), s];
      svg.append(tell(el("path", { class: "mark", fill: "none", d: at.map((y, i) => `${i ? "L" : "M"}${px(i)} ${py(y)}`).join(""), style: `stroke:${heat(s)}`, "stroke-width": 1 + 1.6 * s }), point));
    }
    axes.forEach((name, i) => {
      svg.append(el("line", { class: "axis", x1: px(i), x2: px(i), y1: top, y2: bottom }));
      svg.append(el("text", { class: "panel", x: px(i), y: 14, "text-anchor": "middle" }, clipped(name, 18)));
      const ends = i < levels.length ? [levels[i][0], levels[i].at(-1)] : [low, high];
      ends.forEach((value, end) => svg.append(el("text", { x: px(i), y: end ? top - 2 : bottom + 15, dx: end ? 8 : 0, dy: end ? 8 : 0, "text-anchor": end ? "start" : "middle" }, typeof value === "number" ? human(value) : clipped(value, 10))));
    });
  }

  function speed(svg) {
    const rows = data.speed.filter((one) => one.rate).slice(0, 24);
    const width = room(svg, 560), label = 250, row = 24, height = 8 + row * rows.length + 34;
    frame(svg, width, height);
    const high = Math.max(...rows.map((one) => one.rate));
    const px = (x) => label + (x / high) * (width - label - 60);
    rows.forEach((one, r) => {
      const y = 8 + row * r;
      const i = data.algorithms.findIndex((name) => name === one.algorithm || name.startsWith(`${one.algorithm} `));
      svg.append(el("text", { class: "name", x: label - 10, y: y + 15, "text-anchor": "end" }, clipped(`${one.algorithm} · ${one.task}`, 38)));
      svg.append(hoverable(el("rect", { class: "mark", x: label, y: y + 3, width: Math.max(2, px(one.rate) - label), height: row - 7, rx: 3, style: `fill:${i < 0 ? "var(--faint)" : colour(i)}`, opacity: 0.85 }), `${one.algorithm} on ${one.task}`,
        [[null, "steps per second", human(one.rate)], [null, "wall-clock", clock(one.seconds)], [null, "of it compiling", clock(one.compile)], [null, "runs at once", one.runs]]));
      svg.append(el("text", { x: px(one.rate) + 6, y: y + 15 }, human(one.rate)));
    });
    svg.append(el("text", { x: label, y: height - 6 }, "environment steps per second, all runs of a training together"));
  }

  const draw = {
    efficiency: (svg) => lines(svg, prepared(metric().together.efficiency), { ...horizontal(), height: 330, ylabel: scale() }),
    profiles: (svg) => lines(svg, visible(metric().together.profiles), { xlabel: "score τ", ylabel: "share of runs above τ", yrange: [0, 1], height: 330 }),
    aggregates, improvement, sensitivity, speed,
    task: (svg, place, wide) => {
      const task = metric().tasks.find((one) => one.task === place);
      lines(svg, task ? prepared(task.curves) : [], { ...horizontal(), ylabel: words(metric().name), seeds: state.seeds, height: wide ? 400 : 250 });
    },
    runs: (svg, place, number) => {
      const task = metric().tasks.find((one) => one.task === place);
      const every = task ? prepared(task.curves) : [];
      const values = every.flatMap((one) => one.seeds.flatMap((run) => run.y)); // one scale for a task
      const yrange = values.length ? [Math.min(...values), Math.max(...values)] : null;
      lines(svg, every.filter((one) => one.algorithm === number).map((one) => ({ ...one, low: null, high: null })), { ...horizontal(), seeds: true, yrange: yrange && yrange[0] < yrange[1] ? yrange : null, height: 180 });
    },
  };
  const scale = () => (metric().normalised ? `normalised ${words(metric().name)}, IQM` : `${words(metric().name)}, IQM`);

  function redraw() {
    for (const svg of document.querySelectorAll("svg[data-figure]")) {
      const { figure, task, number, wide } = svg.dataset;
      const card = svg.closest("figure");
      const own = figure === "speed" || (figure === "task" || figure === "runs"
        ? metric().tasks.some((one) => one.task === task && (figure === "task" || one.curves.some((curve) => curve.algorithm === +number)))
        : figure === "sensitivity" ? metric().sensitivity[+number] : metric().together && metric().together[figure].length);
      card.hidden = !own || (figure === "runs" && state.hidden.has(+number));
      if (card.hidden) continue;
      if (figure === "task") draw.task(svg, task, wide);
      else if (figure === "runs") draw.runs(svg, task, +number);
      else if (figure === "sensitivity") draw.sensitivity(svg, +number);
      else draw[figure](svg);
    }
    for (const part of document.querySelectorAll("[data-metric]")) part.hidden = +part.dataset.metric !== state.metric;
  }

  const legend = document.getElementById("legend");
  data.algorithms.forEach((name, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = `${name}: click to hide or show, double click for this one only`;
    button.setAttribute("aria-pressed", "true");
    const key = el("svg", { width: 18, height: 10 }, el("line", { x1: 1, x2: 17, y1: 5, y2: 5, style: `stroke:${colour(i)}`, "stroke-width": 3.5, "stroke-dasharray": dash(i), "stroke-linecap": "round" }));
    const label = document.createElement("span");
    label.textContent = data.diverged[i] ? `${name} (${data.diverged[i]} diverged)` : name;
    button.append(key, label);
    const press = () => {
      [...legend.children].forEach((one, j) => one.setAttribute("aria-pressed", !state.hidden.has(j)));
      redraw();
    };
    button.addEventListener("click", () => { state.hidden.has(i) ? state.hidden.delete(i) : state.hidden.add(i); press(); });
    button.addEventListener("dblclick", () => {
      const alone = state.hidden.size === data.algorithms.length - 1 && !state.hidden.has(i);
      state.hidden = new Set(alone ? [] : data.algorithms.map((_, j) => j).filter((j) => j !== i));
      press();
    });
    legend.append(button);
  });

  if (data.algorithms.length > 8) document.querySelector(".bar").style.position = "static"; // it would hide too much
  const control = (id, event, change) => document.getElementById(id).addEventListener(event, (e) => { change(e.target); redraw(); });
  data.metrics.forEach((one, i) => document.getElementById("metric").append(new Option(words(one.name), i)));
  control("metric", "change", (input) => { state.metric = +input.value; });
  control("axis", "change", (input) => { state.axis = input.value; });
  control("smooth", "input", (input) => { state.smooth = +input.value; });
  control("seeds", "change", (input) => { state.seeds = input.checked; });
  document.getElementById("axis-label").hidden = !data.timed;
  let wait = 0;
  addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(redraw, 120); });
  const printing = (on) => { document.body.classList.toggle("printing", on); redraw(); }; // drawn for the paper's width
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  redraw();
  document.documentElement.dataset.ready = "true";
})();
