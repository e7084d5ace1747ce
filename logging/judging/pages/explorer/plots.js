// Plots
const atTarget = row => row.target !== null && !row.swept;  // its runs stop there, which selects their quality
const frontierColour = () => selects.colour.value ? OTHER : palette()[1];  // none of a config
function frontier(rows, x, y) {
  const better = MEASURES[y][1](rows[0] || {}) ? (a, b) => a > b : (a, b) => a < b;
  const able = rows.filter(row => !row.failed && row[x] !== null && row[y] !== null && !(y === "quality" && atTarget(row)));
  able.sort((a, b) => a[x] - b[x] || (better(a[y], b[y]) ? -1 : 1));
  const found = [];
  for (const row of able) if (!found.length || better(row[y], found.at(-1)[y])) found.push(row);
  return found;
}
function colouring(task) {
  const field = selects.colour.value;
  if (!field) return [() => palette()[0], []];
  const counts = new Map(), length = row => field === "config" && row.swept ? / x[0-9.]+$/ : "";
  const group = row => values(row, field).join(" + ").replace(length(row), "");  // several methods, or lengths, are one colour
  const best = new Set(frontier(task, "minutes", selects.measure.value)), weight = row => best.has(row) ? task.length : 1;
  for (const row of task) counts.set(group(row), (counts.get(group(row)) || 0) + weight(row));
  const top = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)).slice(0, palette().length);
  const legend = top.map((value, i) => [palette()[i], "circle", value || "(none)"]);
  if (counts.size > top.length) legend.push([OTHER, "circle", `${counts.size - top.length} others`]);
  return [row => palette()[top.indexOf(group(row))] || OTHER, legend];
}
function specification(element, x, y, scale) {
  const style = (id, name) => getComputedStyle($(id))[name], text = getComputedStyle(document.body).color;
  const grid = style("controls", "borderTopColor"), scales = { linear: { zero: false }, log: { type: "log", nice: false } };
  const axis = (field, title, type) => ({ field, type: "quantitative", title, scale: { padding: 22, ...scales[type] } });
  const encoding = { x: axis("x", x, scale), y: axis("y", y, selects.measure.value === "quality" ? "linear" : scale) };
  return {
    // Fixed padding: a plot that fits itself to its labels is laid out twice.
    width: element.clientWidth - 96, height: element.clientHeight - 54, autosize: "none",
    padding: { left: 80, right: 16, top: 8, bottom: 46 }, background: "transparent",
    layer: [
      {
        data: { name: "ends" }, mark: { type: "rule", opacity: 0.45 },
        encoding: { ...encoding, x2: { field: "x2" }, y2: { field: "y2" }, stroke: { field: "stroke", type: "nominal", scale: null, legend: null } },
      },
      { data: { name: "frontier" }, mark: { type: "line", interpolate: "step-after", color: frontierColour(), strokeWidth: 2 }, encoding },
      {
        data: { name: "points" }, mark: { type: "point", strokeWidth: 1.5, opacity: 0.85 },
        params: [{ name: "zoom", select: { type: "interval", zoom: "wheel![event.shiftKey]" }, bind: "scales" }],
        encoding: {
          ...encoding, size: { field: "size", type: "quantitative", scale: null },
          ...Object.fromEntries(["fill", "stroke", "shape"].map(name => [name, { field: name, type: "nominal", scale: null, legend: null }])),
        },
      },
    ],
    config: {
      view: { stroke: grid }, font: "system-ui, sans-serif",
      axis: { labelColor: text, titleColor: text, gridColor: grid, tickColor: grid, domainColor: grid, labelFontSize: 12, titleFontSize: 12, labelOverlap: "greedy" },
      axisY: { titleAnchor: "middle", titleX: -68, tickCount: 6, ...selects.measure.value === "quality" ? {} : { format: "~s" } },
    },
  };
}
// Vega's own labels, which Vega-Lite has not: where they cover no point and no other label, the best first.
function labelled(vega) {
  const points = vega.marks.find(mark => mark.type === "symbol").name;
  vega.marks.push({
    type: "text", from: { data: points }, interactive: false,
    encode: { update: { text: { field: "datum.label" }, fill: { value: getComputedStyle(document.body).color }, fontSize: { value: 11 }, limit: { value: 240 } } },
    transform: [{ type: "label", size: { signal: "[width, height]" }, offset: [4], sort: { field: "datum.size", order: "descending" } }],
  });
  return vega;
}
const views = {};
function plot(name, x, task, rows) {
  const element = $(`${name}-plot`), y = selects.measure.value, seconds = chosen.seconds && x === "minutes";
  const unit = x === "cost" ? "US dollars" : x === "joules" ? "joules" : seconds ? "seconds" : "minutes";
  const what = x === "cost" ? "Cost" : x === "joules" ? `Energy of ${task.find(row => row.energy).energy}` : "Time to train";
  const measure = selects.measure.selectedOptions[0]?.textContent || "";
  $(`${name}-title`).textContent = `${measure} against ${what.toLowerCase()} (${data.unverified})`;
  const scale = chosen.scale, key = [x, y, unit, scale, frontierColour(), element.clientWidth, DARK.matches].join();
  if (views[name]?.key !== key) {
    views[name]?.ready.then(view => view.finalize());
    const options = { mode: "vega-lite", renderer: "canvas", actions: false, tooltip: false, patch: labelled, defaultStyle: false, ast: true, logLevel: 1 };
    const ready = vegaEmbed(element, specification(element, `${what}, ${unit}`, measure, scale), options).then(({ view }) => {
      view.addEventListener("pointermove", (event, item) => showTip(event, cards.get(item?.datum?.id)));
      view.addEventListener("pointerout", () => showTip(null, null));
      view.addEventListener("click", (_, item) => { if (item?.datum?.id) { showTip(null, null); location.hash = item.datum.id; } });
      return view;
    });
    views[name] = { key, ready };
  }
  const best = frontier(rows, x, y), inFrontier = new Set(best), base = baseline(), [colour] = chosen.colours;
  const place = row => ({ x: row[x] * (seconds ? 60 : 1), y: row[y] });
  const able = rows.filter(row => row[x] !== null && row[y] !== null && (scale !== "log" || row[x] > 0));
  const layer = row => row === base ? 3 : inFrontier.has(row) ? 2 : row.failed ? 0 : 1;
  const named = able.length <= LABELLED ? new Set(able) : able.length && best.length <= LABELLED ? inFrontier : new Set();
  const points = able.sort((a, b) => layer(a) - layer(b)).map(row => {
    const label = named.has(row) ? row.name : "";
    const one = { ...place(row), label, id: row.id, size: 45, shape: "circle", fill: colour(row), stroke: null };
    if (row.failed) Object.assign(one, { shape: "cross", fill: null, stroke: colour(row) });
    if (inFrontier.has(row)) Object.assign(one, { size: 70, stroke: frontierColour() });
    if (row === base) Object.assign(one, { size: 150, shape: "diamond", stroke: getComputedStyle(document.body).color });
    return one;
  });
  // 95 % intervals of a set's time, or of its cost in proportion, and of its quality
  const ends = able.filter(row => row.ends).flatMap(row => {
    const at = place(row), stroke = colour(row), times = x === "joules" ? null : row.ends.minutes, values = y === "quality" ? row.ends.quality : null;
    const [low, high] = (times || []).map(end => at.x * end / row.minutes);
    return [...times ? [{ x: low, x2: high, y: at.y, y2: at.y, stroke }] : [], ...values ? [{ x: at.x, x2: at.x, y: values[0], y2: values[1], stroke }] : []];
  });
  views[name].ready.then(view => view.data("points", points).data("ends", ends).data("frontier", best.map(place)).run());
  return points.length;
}
function showTip(event, row) {
  $("tip").hidden = !row;
  if (!row) return;
  $("tip").textContent = [
    [row.name, row.kind === "run" && row.file, row.config && row.system, row.submitter, row.round].filter(Boolean).join(", "),
    [time(row.minutes), money(row.cost), row.quality !== null && `${row.metric} ${number(row.quality)}`].filter(Boolean).join(", "),
    ...row.reason ? [row.reason] : [], ...comparisonLines(row),
  ].join("\n");
  const box = $("tip").getBoundingClientRect();
  $("tip").style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4))}px`;
  $("tip").style.top = `${event.clientY + box.height + 20 > innerHeight ? Math.max(4, event.clientY - box.height - 10) : event.clientY + 14}px`;
}
function drawLegend() {
  const marks = { circle: "M7 3a4 4 0 1 0 .01 0z", line: "M0 6h14v2H0z", diamond: "M7 0l6 7-6 7-6-7z", cross: "M6 2h2v4h4v2H8v4H6V8H2V6h4z" };
  const rows = chosen.colours[1].length ? chosen.colours[1] : [[palette()[0], "circle", selects.level.value]];
  const all = [...rows];
  if (frontier(chosen.rows, "minutes", selects.measure.value).length) all.push([frontierColour(), "line", "frontier: no other is both faster and better"]);
  if (chosen.rows.some(row => row.ends && Object.keys(row.ends).length)) all.push([OTHER, "line", "95 % interval over a set's runs"]);
  if (chosen.rows.includes(baseline())) all.push(["currentColor", "diamond", "baseline"]);
  if (chosen.rows.some(row => row.failed)) all.push(["currentColor", "cross", "target missed"]);
  $("legend").replaceChildren(...all.map(([fill, mark, text]) => {
    const image = document.createElementNS("http://www.w3.org/2000/svg", "svg"), shape = document.createElementNS(image.namespaceURI, "path");
    image.setAttribute("viewBox", "0 0 14 14"); image.setAttribute("aria-hidden", "true");
    shape.setAttribute("d", marks[mark]); shape.setAttribute("fill", fill); image.append(shape);
    return el("li", {}, image, text);
  }));
}
