function refresh() {
  const [task, rows] = select();
  Object.assign(chosen, { rows, colours: colouring(task), seconds: task.every(row => row.minutes === null || row.minutes < 5), scale: $("log").checked ? "log" : "linear" });
  const priced = task.some(row => row.cost !== null);
  const powered = task.filter(row => row.joules !== null), energy = powered[0]?.energy;  // joules of one part of a system, of all
  $("cost-figure").hidden = !priced;  // before the plots, whose width depends on their number
  $("joules-figure").hidden = !energy || powered.some(row => row.energy !== energy);
  const drawn = plot("time", "minutes", task, rows), costs = priced ? plot("cost", "cost", task, rows) : 0;
  if (!$("joules-figure").hidden) plot("joules", "joules", task, rows);
  const logs = rows.reduce((sum, row) => sum + (row.runs ? row.runs.length : 1), 0);
  $("summary").textContent = `${number(rows.length)} of ${number(task.length)} ${selects.level.value}s shown, ${number(logs)} logs; the page has ${number(runs.length)} logs in ${number(sets.length)} sets.`;
  $("cut").textContent = [rows.length > drawn ? `${number(rows.length - drawn)} without a time or this value are only in the table.` : "",
    selects.measure.value === "quality" && rows.some(atTarget) ? "Runs that stop at a target have no frontier of quality." : "",
    priced && rows.length > costs ? `${number(rows.length - costs)} have no price or no time.` : "", rows.some(row => row.demonstration) ? data.demonstration : ""].filter(Boolean).join(" ");
  drawAnswer(rows);
  drawLegend();
  drawTable();
}

// The answer that a sweep has, or the best of what is shown; its numbers are on the cards that it links to.
function drawAnswer(rows) {
  const [sweep, asked] = question();
  $("evidence").replaceChildren();
  if (asked) {
    const linked = [...new Set([asked.best, 0])].filter(i => i !== null).flatMap(i => sweep.sets[i]).map(id => cards.get(id));
    $("answer").textContent = `${asked.answer[0].toUpperCase()}${asked.answer.slice(1)}.`;
    $("evidence").append("Measured: ", ...linked.flatMap((row, i) => [i ? ", " : "", link(row)]));
    return;
  }
  const done = rows.filter(row => !row.failed && row.minutes !== null), kinds = [["minutes", "first", time], ["cost", "cheapest", money], ["joules", "least energy", value => `${number(value)} J`]];
  if (done.length < 2 || new Set(done.map(row => row.target)).size > 1) return $("answer").replaceChildren();
  const parts = kinds.flatMap(([name, word, format]) => {
    const row = done.filter(one => one[name] !== null).sort((a, b) => a[name] - b[name])[0];
    const of = row?.runs ? `${name === "minutes" ? within(row.ends.minutes, format) : ""} (${row.reached} of ${row.runs.length} runs)` : "";
    return row ? [`; ${word}: `, link(row), ` ${format(row[name])}${of}`] : [];
  });
  $("answer").replaceChildren(`To ${number(done[0].target)}, of what is shown`, ...parts);
}

addSelect("level", "Show", [["set", "sets of runs"], ["run", "single runs"]]);
if (sets.every(row => row.minutes === null)) selects.level.value = "run";  // as of a sweep, whose runs end with their budget
for (const [field, title] of FILTERS) addSelect(field, title);
addSelect("question", "Question");
selects.question.addEventListener("change", () => {
  const [, asked] = question();
  if (asked) Object.assign(chosen, { sort: asked.budget ? "asked" : asked.curves.some(of => of.usd !== null) ? "askedCost" : "askedTime", falling: asked.budget && chosen.rows[0].higher });
  refresh();
});
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
  for (const name of Object.keys(views).filter(name => name === "time" || !$(`${name}-figure`).hidden)) {
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
