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
if (sets.every(row => row.minutes === null)) selects.level.value = "run";  // as of a sweep, whose runs end with their budget
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
