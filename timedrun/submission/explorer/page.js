// The page follows from `chosen` alone: `refresh` draws plots, legend and table anew. Texts of logs are hostile input: they
// reach the document as text nodes only.
const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const DARK = matchMedia("(prefers-color-scheme: dark)");
// Okabe and Ito's palette; on a dark ground in lighter shades.
const PALETTES = {
  false: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"],
  true: ["#56B4E9", "#FF8A3D", "#3DD6A3", "#EBA0C8", "#F0C05A", "#8FA8FF"],
};
const OTHER = "#8a8f98";
const ROWS = 50;
const FILTERS = [
  ["benchmark", "Benchmark", true], ["dataset", "Dataset", true], ["round", "Round"], ["submitter", "Submitter"],
  ["division", "Division"], ["hardware", "Hardware"], ["config", "Config"], ["methods", "Method"],
];
const MEASURES = {
  quality: ["Quality", row => row.higher], accelerators: ["Accelerators", () => false],
  samples: ["Samples to the end", () => false], rate: ["Samples per second of training", () => true],
};

const sets = data.sets.map(one => derived({ ...one, kind: "set" }));
const runs = data.sets.flatMap((one, i) => one.runs.map(run => {
  const { runs: _, score: __, ...shared } = one;
  return derived({ ...shared, ...run, kind: "run", set: sets[i], reason: run.failure || "" });
}));
const cards = new Map([...sets, ...runs].map(row => [row.id, row]));

function derived(row) {
  row.rate = row.training ? row.samples / row.training / 60 : null;
  row.cost = row.price !== null && row.minutes !== null ? row.price * row.minutes / 60 : null;
  row.failed = row.kind === "run" ? row.failure !== null : !row.reached;
  row.name = row.config || row.system;
  return row;
}

// Elements and texts
function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value; else made.setAttribute(name, value);
  }
  made.append(...children.filter(one => one !== null));
  return made;
}
const number = value => value === null || value === undefined ? "" :
  value.toLocaleString("en", Math.abs(value) < 1000 ? { maximumSignificantDigits: 5 } : { maximumFractionDigits: 0 });
const time = minutes => minutes === null ? "" : minutes < 1 ? `${(minutes * 60).toFixed(2)} s` : `${minutes.toFixed(3)} min`;
const money = cost => cost === null ? "" : `$${cost < 0.1 ? cost.toPrecision(2) : cost.toFixed(2)}`;
const times = ratio => `${ratio.toPrecision(ratio < 1 ? 3 : 4)}x`;
const palette = () => PALETTES[DARK.matches];
const values = (row, field) => field === "methods" ? row.methods : [row[field] || ""];
const path = row => row.kind === "run" ? `${row.folder}/${row.file}` : row.folder;
const quoted = text => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
const link = row => el("a", { href: `#${row.id}`, textContent: row.kind === "run" ? `${row.name}: ${row.file}` : row.name });

// Selection
const chosen = { sort: "minutes", falling: false, limit: ROWS };
const selects = {};
function addSelect(name, title, options = []) {
  selects[name] = el("select", { id: `select-${name}` });
  $("controls").append(el("label", {}, title, selects[name]));
  fill(name, options);
  selects[name].addEventListener("change", () => { chosen.limit = ROWS; refresh(); });
}
function fill(name, options) {
  const before = selects[name].value;
  selects[name].replaceChildren(...options.map(([value, text]) => el("option", { value, textContent: text })));
  selects[name].parentElement.hidden = options.length < 2;
  if (options.some(([value]) => value === before)) selects[name].value = before;
}
// The value of an option begins with "=", so that an empty text differs from all.
const distinct = (rows, field) => [...new Set(rows.flatMap(row => values(row, field)))]
  .sort((a, b) => a.localeCompare(b, "en", { numeric: true })).map(value => [`=${value}`, value || "(none)"]);
const kept = (rows, field) => {
  const wanted = selects[field].value;
  return wanted ? rows.filter(row => values(row, field).includes(wanted.slice(1))) : rows;
};
const baseline = () => cards.get(selects.baseline.value) || null;

function select() {
  let rows = selects.level.value === "run" ? runs : sets, ofTask = sets;
  for (const [field, , required] of FILTERS.filter(one => one[2])) {
    const options = distinct(rows, field), before = selects[field].value;
    fill(field, options);
    if (before !== selects[field].value || !before) {  // the most frequent one
      const count = value => rows.reduce((sum, row) => sum + (`=${row[field]}` === value), 0);
      selects[field].value = options.map(([value]) => value).sort((a, b) => count(b) - count(a))[0];
    }
    rows = kept(rows, field); ofTask = kept(ofTask, field);
  }
  for (const [field] of FILTERS.filter(one => !one[2])) {
    const options = distinct(rows, field);
    fill(field, options.length > 1 ? [["", "all"], ...options] : []);
  }
  const bases = ofTask.filter(row => row.minutes !== null);
  const named = row => [row.id, [row.name, row.config && row.system, row.submitter, row.round, row.folder.split("/").pop()]
    .filter((one, i, all) => one && all.indexOf(one) === i).join(", ")];
  fill("baseline", [["", "none"], ...bases.map(named).sort((a, b) => a[1].localeCompare(b[1], "en", { numeric: true }))]);
  if (!baseline() && chosen.task !== rows[0]?.benchmark + rows[0]?.dataset) {
    selects.baseline.value = bases.find(row => /baseline$/.test(row.config))?.id || "";
  }
  const known = Object.keys(MEASURES).filter(name => rows.some(row => row[name] !== null));
  fill("measure", known.map(name => [name, name === "quality" ? `Quality: ${rows[0].metric}` : MEASURES[name][0]]));
  if (chosen.task !== rows[0]?.benchmark + rows[0]?.dataset) {
    chosen.task = rows[0]?.benchmark + rows[0]?.dataset;
    // All runs of a round end at the target, so their systems' sizes tell more.
    if (new Set(rows.map(row => row.accelerators)).size > 3) selects.measure.value = "accelerators";
  }
  const colours = FILTERS.filter(([field, , required]) => !required && distinct(rows, field).length > 1);
  fill("colour", [["", "frontier"], ...colours.map(([field, title]) => [field, title.toLowerCase()])]);
  const task = rows;
  for (const [field, , required] of FILTERS) if (!required) rows = kept(rows, field);
  return [task, rows];
}

// Comparison with the baseline
function comparison(row) {
  const base = baseline();
  if (!base || base === row || !row.minutes || !base.minutes || row.failed) return null;
  const found = { ratio: base.minutes / row.minutes, base };
  if (row.cost && base.cost) found.cheaper = 1 - row.cost / base.cost;
  if (row.rate && base.rate && row.unit === base.unit && !row.scaled && !base.scaled) {
    found.samples = base.samples / row.samples;
    found.rate = row.rate / base.rate;
    found.rest = found.ratio / found.samples / found.rate;
  }
  found.unlike = ["dataset", "target", "hardware", "accelerators", "division", "round"].filter(n => row[n] !== base[n]);
  return found;
}
function comparisonLines(row) {
  const found = comparison(row);
  if (!found) return baseline() === row ? ["This is the baseline."] : [];
  const share = part => `${Math.abs(part * 100).toFixed(0)} %`, less = 1 - 1 / found.ratio;
  const lines = [`${times(found.ratio)} as fast as the baseline: ${share(less)} ${less < 0 ? "slower" : "less time"}`];
  if (found.cheaper !== undefined) lines.push(`${share(found.cheaper)} ${found.cheaper < 0 ? "more expensive" : "cheaper"}`);
  if (found.samples) {
    lines.push(`${times(found.ratio)} = ${times(found.samples)} (fewer ${row.unit}) · ${times(found.rate)} (${row.unit} a second)`
      + ` · ${times(found.rest)} (evaluation, start-up)`);
  }
  if (found.unlike.length) lines.push(`Not on equal terms: other ${found.unlike.join(", ")}.`);
  return lines;
}

// Plots
function frontier(rows, x, y) {
  const better = MEASURES[y][1](rows[0] || {}) ? (a, b) => a > b : (a, b) => a < b;
  const able = rows.filter(row => !row.failed && row[x] !== null && row[y] !== null);
  able.sort((a, b) => a[x] - b[x] || (better(a[y], b[y]) ? -1 : 1));
  const found = [];
  for (const row of able) if (!found.length || better(row[y], found.at(-1)[y])) found.push(row);
  return found;
}
function colouring(task) {
  const field = selects.colour.value;
  if (!field) return [() => palette()[0], []];
  const counts = new Map();
  for (const row of task) for (const value of values(row, field)) counts.set(value, (counts.get(value) || 0) + 1);
  const top = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)).slice(0, palette().length);
  const legend = top.map((value, i) => [palette()[i], "circle", value || "(none)"]);
  if (counts.size > top.length) legend.push([OTHER, "circle", `${counts.size - top.length} others`]);
  return [row => palette()[top.indexOf(values(row, field)[0])] || OTHER, legend];
}
function specification(element, x, y, scale) {
  const style = (id, name) => getComputedStyle($(id))[name], text = getComputedStyle(document.body).color;
  const grid = style("controls", "borderTopColor"), scales = { linear: { zero: false }, log: { type: "log", nice: false } };
  const axis = (field, title, type) => ({ field, type: "quantitative", title, scale: { padding: 14, ...scales[type] } });
  const encoding = { x: axis("x", x, scale), y: axis("y", y, selects.measure.value === "quality" ? "linear" : scale) };
  return {
    // Fixed padding: a plot that fits itself to its labels is laid out twice.
    width: element.clientWidth - 86, height: element.clientHeight - 54, autosize: "none",
    padding: { left: 70, right: 16, top: 8, bottom: 46 }, background: "transparent",
    layer: [
      { data: { name: "frontier" }, mark: { type: "line", interpolate: "step-after", color: palette()[1], strokeWidth: 2 }, encoding },
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
      axisY: { titleAnchor: "middle", titleX: -58, ...selects.measure.value === "quality" ? {} : { format: "~s" } },
    },
  };
}
const views = {};
function plot(name, x, task, rows) {
  const element = $(`${name}-plot`), y = selects.measure.value, seconds = chosen.seconds && x === "minutes";
  const unit = x === "cost" ? "US dollars" : seconds ? "seconds" : "minutes", what = x === "cost" ? "Cost" : "Time to train";
  const measure = selects.measure.selectedOptions[0]?.textContent || "";
  $(`${name}-title`).textContent = `${measure} against ${what.toLowerCase()} (${data.unverified})`;
  const scale = chosen.scale, key = [x, y, unit, scale, element.clientWidth, DARK.matches].join();
  if (views[name]?.key !== key) {
    views[name]?.ready.then(view => view.finalize());
    const options = { mode: "vega-lite", renderer: "canvas", actions: false, tooltip: false, defaultStyle: false, ast: true, logLevel: 1 };
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
  const points = able.sort((a, b) => layer(a) - layer(b)).map(row => {
    const one = { ...place(row), id: row.id, size: 45, shape: "circle", fill: colour(row), stroke: null };
    if (row.failed) Object.assign(one, { shape: "cross", fill: null, stroke: colour(row) });
    if (inFrontier.has(row)) Object.assign(one, { size: 70, stroke: palette()[1] });
    if (row === base) Object.assign(one, { size: 150, shape: "diamond", stroke: getComputedStyle(document.body).color });
    return one;
  });
  views[name].ready.then(view => view.data("points", points).data("frontier", best.map(place)).run());
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
  const all = [...rows, [palette()[1], "line", "frontier: no other is both faster and better"]];
  if (baseline()) all.push(["currentColor", "diamond", "baseline"]);
  if (chosen.rows.some(row => row.failed)) all.push(["currentColor", "cross", "target missed"]);
  $("legend").replaceChildren(...all.map(([fill, mark, text]) => {
    const image = document.createElementNS("http://www.w3.org/2000/svg", "svg"), shape = document.createElementNS(image.namespaceURI, "path");
    image.setAttribute("viewBox", "0 0 14 14"); image.setAttribute("aria-hidden", "true");
    shape.setAttribute("d", marks[mark]); shape.setAttribute("fill", fill); image.append(shape);
    return el("li", {}, image, text);
  }));
}

// Table and CSV: name, title, text of a row; numbers are sorted and exported as numbers
const COLUMNS = [
  ["name", "Name"], ["file", "Log"], ["system", "System"], ["submitter", "Submitter"], ["round", "Round"], ["division", "Division"],
  ["hardware", "Hardware"], ["accelerators", "Accelerators", number], ["minutes", "Time", time], ["ratio", "Speed-up", value => value === null ? "" : times(value)],
  ["cost", "Cost", money], ["quality", "Quality", number], ["samples", "Samples", number], ["unit", "Counted in"], ["rate", "Samples/s", number],
  ["reached", "Reached", number], ["reason", "No score, because"], ["folder", "Folder"],
];
const cell = (row, name) => name === "ratio" ? comparison(row)?.ratio ?? null :
  name === "system" && !row.config || name === "unit" && row.unit === "samples" ? "" : name === "folder" && row.round ? "" : row[name] ?? null;  // other columns say it
function sorted(rows) {
  const { sort, falling } = chosen, sign = falling ? -1 : 1, empty = value => value === null || value === "";
  return rows.map(row => [cell(row, sort), row]).sort(([a], [b]) => empty(a) - empty(b) || (empty(a) ? 0 : sign *
    (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b))).map(([, row]) => row);
}
function drawTable() {
  const columns = COLUMNS.filter(([name]) => chosen.rows.some(row => ![null, ""].includes(cell(row, name))));
  const focused = document.activeElement?.dataset?.column;
  $("table").tHead.replaceChildren(el("tr", {}, ...columns.map(([name, title, format]) => {
    const now = name === chosen.sort, button = el("button", { type: "button", textContent: `${title}${now ? chosen.falling ? " ▾" : " ▴" : ""}` });
    button.dataset.column = name;
    button.addEventListener("click", () => { chosen.falling = now && !chosen.falling; chosen.sort = name; drawTable(); });
    return el("th", { scope: "col", className: format ? "number" : "", "aria-sort": now ? chosen.falling ? "descending" : "ascending" : "none" }, button);
  })));
  $("table").tBodies[0].replaceChildren(...sorted(chosen.rows).slice(0, chosen.limit).map(row => el("tr", {}, ...columns.map(([name, , format]) => {
    if (name === "name") return el("td", {}, link(row));
    return el("td", { className: format ? "number" : "", textContent: format ? format(cell(row, name)) : cell(row, name) ?? "" });
  }))));
  if (focused) document.querySelector(`[data-column="${focused}"]`)?.focus();
  $("more").hidden = chosen.rows.length <= chosen.limit;
  $("more").textContent = `Show more (${number(Math.min(chosen.limit, chosen.rows.length))} of ${number(chosen.rows.length)})`;
}
function csv() {
  const names = [...COLUMNS.map(([name]) => name), "benchmark", "dataset", "config", "methods", "target", "metric", "id", "path", "lines"];
  const text = (row, name) => name === "path" ? path(row) : name === "methods" ? row.methods.join(" ") :
    name === "lines" ? Object.entries(row.lines || {}).map(([key, line]) => `${key} ${line}`).join("; ") : cell(row, name) ?? "";
  // A spreadsheet takes a text that begins so for a formula.
  const inert = value => typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : `${value}`;
  const field = value => /[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  const lines = sorted(chosen.rows).map(row => [...names.map(name => inert(text(row, name))), data.notice]);
  return [[...names, "notice"], ...lines].map(line => line.map(field).join(",")).join("\n") + "\n";
}

// Cards
const pairs = (...rows) => el("dl", {}, ...rows.filter(([, value]) => value !== "" && value !== null).flatMap(([name, value]) =>
  [el("dt", { textContent: name }), el("dd", {}, value)]));
function openCard(row) {
  const lines = Object.entries(row.lines || {}), against = comparisonLines(row), base = el("button", { type: "button", textContent: "Use as baseline" });
  base.addEventListener("click", () => { selects.baseline.value = (row.set || row).id; $("card").close(); refresh(); });
  const close = el("button", { type: "button", textContent: "Close", autofocus: true });
  close.addEventListener("click", () => $("card").close());
  $("card").replaceChildren(...[
    el("h2", { id: "card-title", textContent: row.kind === "run" ? `${row.name}: ${row.file}` : row.name }),
    el("div", { className: "buttons" }, close, base),
    pairs(
      [row.kind === "run" ? "Time to train" : row.score ? "Score" : "Median time, no score", row.minutes === null ? "none" : `${time(row.minutes)} = ${row.minutes} min (${data.unverified})`],
      [row.kind === "run" ? "Target missed" : "No score, because", row.reason], ["Cost", row.cost === null ? "" : `${money(row.cost)} at ${row.priced}`],
      ["Quality", row.quality === null ? "" : `${row.metric} ${row.quality}${row.target === null ? "" : `, target ${row.target}`}`],
      ["Training", row.rate === null ? "" : `${number(row.samples)} ${row.unit} at ${number(row.rate)} a second`], ["Seed", row.seed ?? ""],
      ["Runs at target", row.kind === "set" ? `${row.reached} of ${row.runs.length}` : ""], ["Benchmark", row.benchmark], ["Dataset", row.dataset],
      ["Config", row.config], ["Methods", row.methods.join(", ")], ["System", row.system], ["Submitter", row.submitter], ["Round", row.round], ["Division", row.division],
      ["Hardware", row.accelerators ? `${row.accelerators} x ${row.hardware}` : row.hardware], ["Software", row.software], ["Set", row.set ? link(row.set) : ""],
      ["Link", el("a", { href: `#${row.id}`, textContent: `#${row.id}` })],
    ),
    against.length ? el("h3", { textContent: `Against ${baseline().name}` }) : null, ...against.map(text => el("p", { textContent: text })),
    el("h3", { textContent: "From the logs" }),
    pairs([row.kind === "run" ? "Log" : "Folder", el("code", { textContent: path(row) })], ...lines.map(([key, line]) => [key, `line ${line}`])),
    el("p", { textContent: "Print these numbers, and the lines that they are computed from:" }),
    el("pre", { textContent: [`timedrun score --json ${quoted(path(row))}`, ...lines.length ? [`sed -n '${lines.map(([, line]) => `${line}p`).join(";")}' ${quoted(path(row))}`] : []].join("\n") }),
    row.kind === "set" ? el("h3", { textContent: "Runs" }) : null,
    row.kind === "set" ? el("ul", {}, ...row.runs.map(run => el("li", {}, el("a", { href: `#${run.id}`, textContent: run.file }), ` ${time(run.minutes)} ${run.failure || ""}`))) : null,
    el("p", { textContent: data.notice }), row.demonstration ? el("p", { textContent: data.demonstration }) : null,
  ].filter(one => one !== null));
  if (!$("card").open) $("card").showModal();
  $("card").scrollTop = 0;
}
function followLink() {
  const row = cards.get(location.hash.slice(1));
  if (!row) return $("card").open && $("card").close();
  if (!$("card").open && !chosen.rows.includes(row)) {  // a link to what the selection hides
    selects.level.value = row.kind;
    for (const [field, , required] of FILTERS) selects[field].value = required ? `=${row[field] || ""}` : "";
    refresh();
    if (selects.dataset.value !== `=${row.dataset || ""}`) { selects.dataset.value = `=${row.dataset || ""}`; refresh(); }
  }
  openCard(row);
}

function refresh() {
  const [task, rows] = select();
  Object.assign(chosen, { rows, colours: colouring(task), seconds: task.every(row => row.minutes === null || row.minutes < 5), scale: $("log").checked ? "log" : "linear" });
  const priced = task.some(row => row.cost !== null);
  $("cost-figure").hidden = !priced;
  const drawn = plot("time", "minutes", task, rows), costs = priced ? plot("cost", "cost", task, rows) : 0;
  const logs = rows.reduce((sum, row) => sum + (row.runs ? row.runs.length : 1), 0);
  $("summary").textContent = `${number(rows.length)} of ${number(task.length)} ${selects.level.value}s shown, ${number(logs)} logs; the page has ${number(runs.length)} logs in ${number(sets.length)} sets.`;
  $("cut").textContent = [rows.length > drawn ? `${number(rows.length - drawn)} without a time or this value are only in the table.` : "",
    priced && rows.length > costs ? `${number(rows.length - costs)} have no price or no time.` : "", rows.some(row => row.demonstration) ? data.demonstration : ""].filter(Boolean).join(" ");
  drawLegend();
  drawTable();
}

addSelect("level", "Show", [["set", "sets of runs"], ["run", "single runs"]]);
for (const [field, title] of FILTERS) addSelect(field, title);
addSelect("baseline", "Baseline");
addSelect("measure", "Vertical axis");
addSelect("colour", "Colour");
const log = el("input", { type: "checkbox", id: "log", checked: true });
$("controls").append(el("label", { className: "check" }, log, "Logarithmic time"));
log.addEventListener("change", refresh);
$("controls").addEventListener("submit", event => event.preventDefault());
$("more").addEventListener("click", () => { chosen.limit += 4 * ROWS; drawTable(); });
function save(text, type, name) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
$("csv").addEventListener("click", () => save(csv(), "text/csv", "timedrun.csv"));
$("svg").addEventListener("click", async () => {
  for (const name of Object.keys(views).filter(name => name === "time" || !$("cost-figure").hidden)) {
    save(await (await views[name].ready).toSVG(), "image/svg+xml", `timedrun-${name}.svg`);
  }
});
$("card").addEventListener("close", () => history.replaceState(null, "", location.href.split("#")[0]));
$("card").addEventListener("click", event => { if (event.target === $("card")) $("card").close(); });
addEventListener("hashchange", followLink);
DARK.addEventListener("change", refresh);
addEventListener("resize", () => requestAnimationFrame(refresh));
refresh();
followLink();
await Promise.all(Object.values(views).map(({ ready }) => ready));
document.documentElement.dataset.ready = "true";
