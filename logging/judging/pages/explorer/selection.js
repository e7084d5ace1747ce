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
const LABELLED = 12;  // points that have their names beside them
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
  const { runs: _, ends: __, ...shared } = one;
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
const within = (ends, format) => ends ? ` [${ends.map(format).join(", ")}]` : "";
const money = cost => cost === null ? "" : `$${cost < 0.1 ? cost.toPrecision(2) : cost.toFixed(2)}`;
const times = ratio => `${ratio.toPrecision(ratio < 1 ? 3 : 4)}x`;
const factor = found => found.ends ? `${found.ratio.toPrecision(3)}x [${found.ends.map(end => end.toPrecision(3)).join(", ")}]` : `${times(found.ratio)}, no interval`;
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
const sweepsOf = row => data.sweeps.filter(one => one.benchmark === row?.benchmark && one.dataset === row?.dataset);
function question() {  // the sweep and the answer that are chosen
  const [i, k] = selects.question.value.split(".").map(Number), sweep = data.sweeps[i];
  return sweep ? [sweep, sweep.asked[k]] : [null, null];
}
function atQuestion(row, name) {
  const [sweep, asked] = question(), id = (row.set || row).id, curve = sweep ? sweep.sets.findIndex(ids => ids.includes(id)) : -1;
  return curve < 0 ? null : asked.curves[curve][name];
}
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
    selects.baseline.value = (bases.find(row => /baseline$/.test(row.config)) || bases.find(row => row.race && row.folder.endsWith("/a")))?.id || "";
  }
  const several = sweepsOf(rows[0]).length > 1;
  fill("question", sweepsOf(rows[0]).flatMap(sweep => sweep.asked.map((asked, k) =>
    [`${data.sweeps.indexOf(sweep)}.${k}`, `${asked.budget ? "best" : "first"} ${asked.question}${several ? `, ${sweep.sweep}` : ""}`])));
  const known = Object.keys(MEASURES).filter(name => rows.some(row => row[name] !== null));
  if (!known.length) known.push("quality");  // of sets that all missed their target
  fill("measure", known.map(name => [name, name === "quality" ? `Quality: ${rows[0].metric}` : MEASURES[name][0]]));
  const anew = chosen.task !== rows[0]?.benchmark + rows[0]?.dataset;
  if (anew) {
    chosen.task = rows[0]?.benchmark + rows[0]?.dataset;
    // All runs of a round end at the target, so their systems' sizes tell more.
    if (new Set(rows.map(row => row.accelerators)).size > 3) selects.measure.value = "accelerators";
  }
  const colours = FILTERS.filter(([field, , required]) => !required && distinct(rows, field).length > 1);
  fill("colour", [["", "frontier"], ...colours.map(([field, title]) => [field, title.toLowerCase()])]);
  // One's own results are of configs, those of a round are of systems.
  if (anew && !rows.some(row => row.round) && colours.some(([field]) => field === "config")) selects.colour.value = "config";
  const task = rows;
  for (const [field, , required] of FILTERS) if (!required) rows = kept(rows, field);
  return [task, rows];
}

// Comparison with the baseline. The speed-up is that of `timedrun compare`: of the runs at the target, by pairs of one
// number if both sets are sides of one race. `data.t` has Student's quantiles for 1, 2 ... degrees of freedom.
function speedUp(base, row) {
  const scores = { ratio: base.minutes / row.minutes, of: row.kind === "run" ? "one run" : "scores", ends: null };
  if (row.kind === "run" || row.scaled || base.scaled) return scores;
  const times = set => new Map(set.runs.filter(run => run.failure === null).map(run => [run.file, Math.log(run.minutes)]));
  const moments = logs => {  // mean, its variance, count
    const mean = logs.reduce((sum, log) => sum + log, 0) / logs.length;
    return [mean, logs.reduce((sum, log) => sum + (log - mean) ** 2, 0) / (logs.length - 1) / logs.length, logs.length];
  };
  const [slow, fast] = [times(base), times(row)], paired = base.race && base.race === row.race;
  const both = [...slow.keys()].filter(file => fast.has(file));
  if (!fast.size || !slow.size || (paired && !both.length)) return scores;
  const sides = (paired ? [both.map(file => slow.get(file) - fast.get(file)), [0]] : [slow, fast].map(side => [...side.values()])).map(moments);
  const counted = paired ? sides.slice(0, 1) : sides, middle = sides[0][0] - sides[1][0];
  const variance = counted.reduce((sum, [, of]) => sum + of, 0), known = counted.every(([, , n]) => n > (paired ? 2 : 1));
  const degrees = variance ** 2 / counted.reduce((sum, [, of, n]) => sum + of ** 2 / (n - 1), 0) || 1;
  const whole = Math.min(Math.floor(degrees + 1e-9), data.t.length - 1), [more, less] = data.t.slice(whole - 1, whole + 1);
  const reach = (more + (less - more) * (whole + 1) * (1 - whole / degrees)) * Math.sqrt(variance);  // linear in 1 / degrees
  const at = set => set.runs.some(run => run.failure !== null) ? " that reach the target" : "";
  const of = (paired ? `${both.length} pair${both.length > 1 ? "s" : ""}` : `${slow.size} and ${fast.size} runs`) + (at(base) || at(row));
  return { ratio: Math.exp(middle), of, ends: known ? [middle - reach, middle + reach].map(Math.exp) : null };
}
function comparison(row) {
  const base = baseline();
  if (!base || base === row || !row.minutes || !base.minutes || row.failed) return null;
  const found = { ...speedUp(base, row), scores: base.minutes / row.minutes, base };
  if (row.cost && base.cost) found.cheaper = 1 - row.cost / base.cost;
  if (row.rate && base.rate && row.unit === base.unit && !row.scaled && !base.scaled) {
    found.samples = base.samples / row.samples;
    found.rate = row.rate / base.rate;
    found.rest = found.scores / found.samples / found.rate;
  }
  found.unlike = ["dataset", "target", "hardware", "accelerators", "division", "round"].filter(n => row[n] !== base[n]);
  return found;
}
function comparisonLines(row) {
  const found = comparison(row);
  if (!found) return baseline() === row ? ["This is the baseline."] : [];
  const share = part => `${Math.abs(part * 100).toFixed(0)} %`, less = 1 - 1 / found.ratio;
  const lines = [`${factor(found)} as fast as the baseline (${found.of}): ${share(less)} ${less < 0 ? "slower" : "less time"}`];
  if (found.cheaper !== undefined) lines.push(`${share(found.cheaper)} ${found.cheaper < 0 ? "more expensive" : "cheaper"}`);
  if (found.samples) {
    lines.push(`Of the times shown, ${times(found.scores)} = ${times(found.samples)} (fewer ${row.unit}) · ${times(found.rate)} (${row.unit} a second)`
      + ` · ${times(found.rest)} (evaluation, start-up)`);
  }
  if (found.unlike.length) lines.push(`Not on equal terms: other ${found.unlike.join(", ")}.`);
  return lines;
}
