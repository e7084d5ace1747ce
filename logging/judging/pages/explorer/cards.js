// Table and CSV: name, title, text of a row; numbers are sorted and exported as numbers
const COLUMNS = [
  ["name", "Name"], ["file", "Log"], ["system", "System"], ["submitter", "Submitter"], ["round", "Round"], ["division", "Division"],
  ["hardware", "Hardware"], ["accelerators", "Accelerators", number], ["minutes", "Time", time], ["ratio", "Speed-up", (_, row) => comparison(row) ? factor(comparison(row)) : ""],
  ["cost", "Cost", money], ["joules", "Energy, J", number], ["asked", "Quality there", number], ["askedTime", "Time to it", time],
  ["askedCost", "Cost to it", money], ["quality", "Quality", number], ["samples", "Samples", number], ["unit", "Counted in"], ["rate", "Samples/s", number],
  ["reached", "Reached", number], ["reason", "No score, because"], ["folder", "Folder"],
];
const ASKED = { asked: "quality", askedTime: "minutes", askedCost: "usd" };
const cell = (row, name) => name in ASKED ? atQuestion(row, ASKED[name]) : name === "ratio" ? comparison(row)?.ratio ?? null :
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
    return el("td", { className: format ? "number" : "", textContent: format ? format(cell(row, name), row) : cell(row, name) ?? "" });
  }))));
  if (focused) document.querySelector(`[data-column="${focused}"]`)?.focus();
  $("more").hidden = chosen.rows.length <= chosen.limit;
  $("more").textContent = `Show more (${number(Math.min(chosen.limit, chosen.rows.length))} of ${number(chosen.rows.length)})`;
}
function csv() {
  const names = [...COLUMNS.map(([name]) => name), "benchmark", "dataset", "config", "methods", "target", "metric", "id", "path", "lines", "ratio_low", "ratio_high", "ratio_of"];
  const text = (row, name) => name === "path" ? path(row) : name === "methods" ? row.methods.join(" ") :
    name.startsWith("ratio_") ? { ratio_low: comparison(row)?.ends?.[0], ratio_high: comparison(row)?.ends?.[1], ratio_of: comparison(row)?.of }[name] ?? "" :
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
function commands(row, lines) {
  const file = quoted(path(row)), found = [`timedrun ${row.kind === "set" && row.swept ? "compare" : "score"} --json ${file}`];
  if (row.archive) found.unshift(`tar -xf ${quoted(row.archive)} -C ${quoted(row.archive.replace(/[^/]*$/, "") || ".")}`);
  if (lines.length) found.push(`sed -n '${lines.map(([, line]) => `${line}p`).join(";")}' ${file}`);
  // The time that samples a second leave out.
  if (row.kind === "run" && row.training) found.push(`grep -nE '"(block_start|block_stop|epoch_start|eval_start|eval_stop)"' ${file}`);
  return found;
}
function openCard(row) {
  const lines = Object.entries(row.lines || {}), against = comparisonLines(row), base = el("button", { type: "button", textContent: "Use as baseline" });
  base.addEventListener("click", () => { selects.baseline.value = (row.set || row).id; $("card").close(); refresh(); });
  const close = el("button", { type: "button", textContent: "Close", autofocus: true });
  close.addEventListener("click", () => $("card").close());
  $("card").replaceChildren(...[
    el("h2", { id: "card-title", textContent: row.kind === "run" ? `${row.name}: ${row.file}` : row.name }),
    el("div", { className: "buttons" }, close, base),
    pairs(
      [row.kind === "run" ? "Time to train" : row.what, row.minutes === null ? "none" : `${time(row.minutes)} = ${+row.minutes.toFixed(6)} min${within(row.ends?.minutes, time)} (${data.unverified})`],
      [row.kind === "run" ? "Target missed" : "No score, because", row.reason], ["Cost", row.cost === null ? "" : `${money(row.cost)} at ${row.priced}`],
      ["Quality", row.quality === null ? "" : `${row.metric} ${number(row.quality)}${within(row.ends?.quality, number)}${row.target === null ? "" : `, target ${number(row.target)}`}`],
      ["Training", row.rate === null ? "" : `${number(row.samples)} ${row.unit} at ${number(row.rate)} a second`], ["Seed", row.seed ?? ""],
      ["Other clocks", [row.speedrun && `speedrun, training alone: ${time(row.speedrun)}, no MLPerf time`, row.steps && `${number(row.steps)} optimizer steps`].filter(Boolean).join("; ")],
      ["Scaled by", row.scaled ? `${+row.scaled.toFixed(6)}, the factor of scaling.json` : ""], [row.swept ? "Runs that ended" : "Runs at target", row.kind === "set" ? `${row.reached} of ${row.runs.length}` : ""], ["Benchmark", row.benchmark], ["Dataset", row.dataset],
      ["Config", row.config], ["Methods", row.methods.join(", ")], ["System", row.system], ["Submitter", row.submitter], ["Round", row.round], ["Division", row.division],
      ["Hardware", row.accelerators ? `${row.accelerators} x ${row.hardware}` : row.hardware], ["Software", row.software], ["Described in", row.described && el("code", { textContent: row.described })], ["Set", row.set ? link(row.set) : ""],
      ["Link", el("a", { href: `#${row.id}`, textContent: `#${row.id}` })],
    ),
    against.length ? el("h3", {}, "Against ", link(baseline())) : null, ...against.map(text => el("p", { textContent: text })),
    el("h3", { textContent: "From the logs" }),
    pairs([row.kind === "run" ? "Log" : "Folder", el("code", { textContent: path(row) })], ...lines.map(([key, line]) => [key, `line ${line}`])),
    el("p", { textContent: `Print these numbers, and the lines that they are computed from, in the folder of ${path(row).split("/")[0]}:` }),
    el("pre", { textContent: commands(row, lines).join("\n") }),
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
