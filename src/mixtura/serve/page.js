"use strict";

// The page: a form made from the columns of the model, and what it answers, as one types.
// Text of the model and of users only ever becomes text of elements, never markup.

const MOST_FIELDS = 200, MOST_SHOWN = 12, PAUSE = 250;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
let schema = null, latest = 0, timer = 0;

function element(name, properties = {}, ...children) {
  const found = Object.assign(document.createElement(name), properties);
  found.append(...children);
  return found;
}

function drawn(name, attributes, text = "") {
  const found = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.textContent = text;
  return found;
}

const percent = (share) => (100 * share).toFixed(1) + " %";
const brief = (value) => typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value);

// -- the form --------------------------------------------------------------------------------

function field(column, place) {
  const id = "field-" + place;
  let input;
  if (column.categories || column.kind === "boolean") {
    const values = column.categories || [false, true];
    input = element("select", { id });
    input.append(element("option", { value: "", textContent: "not known" }));
    values.forEach((value, at) => {
      input.append(element("option", { value: String(at), textContent: String(value) }));
    });
  } else {
    const hint = column.typical === undefined ? "" : "about " + brief(column.typical);
    input = element("input", { id, type: "text", inputMode: "decimal", placeholder: hint });
  }
  return element("div", { className: "field" },
    element("label", { htmlFor: id, textContent: column.name }), input);
}

function known() {
  const row = Object.create(null);  // a column may have any name
  let wrong = null;
  schema.columns.slice(0, MOST_FIELDS).forEach((column, place) => {
    const input = byId("field-" + place), text = input.value.trim();
    input.removeAttribute("aria-invalid");
    if (text === "") return;
    if (input.tagName === "SELECT") {
      row[column.name] = (column.categories || [false, true])[Number(text)];
      return;
    }
    const value = Number(text.replace(",", "."));
    if (Number.isFinite(value)) {
      row[column.name] = value;
    } else {
      input.setAttribute("aria-invalid", "true");
      wrong = column.name + ": “" + text + "” is no number.";
    }
  });
  if (wrong) throw new Error(wrong);
  return row;
}

// -- answers ---------------------------------------------------------------------------------

async function post(path, body, type = "application/json") {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": type }, body });
  if (answer.ok) return answer;
  const failed = await answer.json().catch(() => ({ error: answer.statusText }));
  throw new Error(failed.error);
}

async function ask(question, row, options = {}) {
  if (!schema.questions.includes(question)) return null;
  const answer = await post("/" + question, JSON.stringify({ rows: [row], ...options }));
  return answer.json();
}

async function answer() {
  const number = ++latest;
  byId("status").className = "";
  try {
    const row = known(), nothing = Object.keys(row).length === 0;
    const found = await Promise.all([
      ask("predict", row, { coverage: 0.9, outliers: 0.01 }),
      nothing ? null : ask("explain", row), ask("next", row), ask("impute", row),
    ]);
    if (number !== latest) return;
    const [prediction, why, next, impute] = found.map((each) => each && each.rows[0]);
    const notes = found.flatMap((each) => each ? each.notes : []);
    byId("status").textContent = [...new Set(notes)].join(" ");
    showPrediction(prediction, nothing);
    showWhy(why);
    showNext(next);
    showFilled(impute);
  } catch (error) {
    if (number !== latest) return;
    byId("status").className = "error";
    byId("status").textContent = error.message;
    for (const id of ["prediction", "why", "next", "impute"]) byId(id).replaceChildren();
  }
}

// The largest first. Objects do not keep that order: names that are whole numbers come first in them.
function bySize(values) {
  return Object.entries(values).sort(([, one], [, other]) => Math.abs(other) - Math.abs(one));
}

function listed(title, pairs, show, ranked = true) {
  const rows = pairs.slice(0, MOST_SHOWN).map(([name, value], place) =>
    element("tr", { className: ranked && place === 0 ? "best" : "" },
      element("th", { scope: "row", textContent: name }),
      element("td", { className: "number", textContent: show(value) })));
  const more = pairs.length - rows.length;
  return [element("h3", { textContent: title }), element("table", {}, element("tbody", {}, ...rows)),
    more > 0 ? element("p", { className: "faint", textContent: "and " + more + " more" }) : ""];
}

function showPrediction(found, nothing) {
  const parts = [];
  if (found.unlike_training && !nothing) {
    parts.push(element("p", { className: "warning", id: "odd",
      textContent: "This row is unlike anything that the model has seen." }));
  }
  if (found.probabilities) {
    parts.push(...listed(schema.target || "Class", bySize(found.probabilities), percent));
  } else {
    const name = "prediction" in found ? schema.target || "Prediction" : "Log density";
    const value = "prediction" in found ? found.prediction : found.log_density;
    parts.push(...listed(name, [[name, value]], brief));
  }
  if (found.interval) {
    const ends = found.interval.map((end) => end === null ? "anything" : brief(end));
    parts.push(element("p", { id: "set", textContent: "With 90 % coverage: " + ends.join(" to ") }));
  }
  if (found.set) {
    const set = found.set.length ? found.set.join(", ") : "none of them";
    parts.push(element("p", { id: "set", textContent: "With 90 % coverage: " + set }));
  }
  byId("prediction").replaceChildren(...parts);
}

function showWhy(found) {
  if (!found) {
    byId("why").replaceChildren();
    return;
  }
  const adds = bySize(found.adds).filter(([, value]) => value !== 0);
  const shown = adds.slice(0, MOST_SHOWN);
  const rest = adds.slice(MOST_SHOWN).reduce((sum, [, value]) => sum + value, 0);
  if (rest !== 0) shown.push(["all others", rest]);
  const what = "class" in found ? found["class"] : found.target || "this number";
  const about = "class" in found || "target" in found;
  const title = about ? "Why " + what + "?" : "Why so likely, or unlikely?";
  const text = shown.map(([name, value]) => name + " " + (value < 0 ? "−" : "+") +
    brief(Math.abs(value))).join(", ");
  byId("why").replaceChildren(element("h3", { textContent: title }),
    waterfall(found.base, shown, found.answer, title + " From " + brief(found.base) + ": " + text));
}

function waterfall(base, steps, answer, description) {
  const height = 22, width = Math.max(260, Math.min(600, byId("why").clientWidth));
  const left = Math.round(width / 3), right = 70, letters = Math.floor(left / 7);
  let at = base;
  const ends = [base, ...steps.map(([, value]) => (at += value)), answer];
  const low = Math.min(0, ...ends), high = Math.max(...ends, low + 1e-9);
  const x = (value) => left + (width - left - right) * (value - low) / (high - low);
  const lines = [["to begin with", low, base, "bar"]];
  at = base;
  for (const [name, value] of steps) {
    lines.push([name, at, at + value, value < 0 ? "minus" : "plus"]);
    at += value;
  }
  lines.push(["in all", low, answer, "bar"]);
  const picture = drawn("svg", {
    viewBox: "0 0 " + width + " " + height * lines.length, role: "img", "aria-label": description,
  });
  lines.forEach(([name, from, to, kind], place) => {
    const y = place * height, start = x(Math.min(from, to));
    const short = name.length > letters ? name.slice(0, letters - 1) + "…" : name;
    const change = kind === "bar" ? brief(to) : (to < from ? "−" : "+") + brief(Math.abs(to - from));
    picture.append(
      drawn("text", { x: left - 8, y: y + 15, "text-anchor": "end" }, short),
      drawn("rect", { class: kind, x: start, y: y + 3, height: height - 6,
        width: Math.max(1, Math.abs(x(to) - x(from))) }),
      drawn("text", { x: Math.max(x(from), x(to)) + 6, y: y + 15 }, change));
  });
  return picture;
}

function showNext(found) {
  const pairs = found ? bySize(found.nats || found.shares) : [];
  const unit = found && found.shares ? " of the variance" : " nats";
  byId("next").replaceChildren(...(pairs.length
    ? listed("What to measure next", pairs.slice(0, 5), (value) => value.toFixed(3) + unit) : []));
}

function showFilled(found) {
  const pairs = found ? Object.entries(found.filled) : [];
  byId("impute").replaceChildren(...(pairs.length
    ? listed("What is missing is probably", pairs, brief, false) : []));
}

// -- tables ----------------------------------------------------------------------------------

async function sendTable() {
  const status = byId("table-status"), file = byId("file").files[0];
  status.className = "";
  status.textContent = "Working";
  try {
    const body = file || byId("text").value;
    const found = await (await post("/table", body, "text/csv")).blob();
    const link = element("a", { href: URL.createObjectURL(found), download: "predictions.csv",
      textContent: "predictions.csv", id: "download" });
    status.replaceChildren("Here it is: ", link);
  } catch (error) {
    status.className = "error";
    status.textContent = error.message;
  }
}

// -- the beginning ---------------------------------------------------------------------------

async function begin() {
  schema = await (await fetch("/schema")).json();
  const columns = schema.columns.slice(0, MOST_FIELDS);
  byId("title").textContent = schema.target ? "What is “" + schema.target + "”?" : schema.model;
  if (columns.length < schema.columns.length) {
    byId("about").textContent += " These are the first " + MOST_FIELDS + " of " +
      schema.columns.length + " columns; a table may hold all.";
  }
  byId("fields").replaceChildren(...columns.map(field));
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(answer, PAUSE);
  };
  byId("form").addEventListener("input", soon);
  byId("form").addEventListener("reset", () => setTimeout(answer));
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    answer();
  });
  byId("send").addEventListener("click", sendTable);
  await answer();
}

begin().catch((error) => {
  byId("status").className = "error";
  byId("status").textContent = error.message;
});
