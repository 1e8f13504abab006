"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// Text goes into the page as text alone, whatever it holds.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value; // as an attribute, a server's policy would forbid it
    else if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function drawn(tag, attributes = {}, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) name === "style" ? (made.style.cssText = value) : made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const shown = (token) => token.replace(/^▁/, "") || token || "·";
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });

// The first letters of a text as people count them: an emoji or a letter with its accents stays whole.
function shortened(text, most) {
  const letters = Array.from(segmenter.segment(text), (one) => one.segment);
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

const digits = (number) => {
  if (number === 0) return "0";
  const size = Math.abs(number);
  return size >= 1000 || size < 0.001 ? number.toExponential(2) : number.toPrecision(3);
};

// A number as exactly as it is known: the error holds what rounding adds.
function measured(number, error) {
  const places = Math.min(100, Math.max(0, -Math.floor(Math.log10(error)))), unit = 10 ** -places;
  return `${number.toFixed(places)} ± ${(Math.ceil(error / unit + 0.5) * unit).toFixed(places)}`;
}

/* what is said of the place under the pointer, and to those who do not see it */
const tip = byId("tip");
function tell(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - box.height - 8))}px`;
}
const hush = () => { tip.hidden = true; };
const say = (text) => { byId("said").textContent = text; };
addEventListener("keydown", (event) => { if (event.key === "Escape") hush(); });

/* head of the page */
byId("about").textContent = `${data.model}: ${data.kind}, ${data.parameters.toLocaleString("en")} parameters, ${data.steps.length} steps`;
byId("text").textContent = data.text;
document.title = `${shortened(data.text, 60)} – Clearhead`;
if (data.output !== undefined) {
  byId("output").textContent = data.output;
  byId("output").hidden = false;
}
for (const long of [byId("text"), byId("output")]) {
  if (long.scrollHeight > long.clientHeight) long.tabIndex = 0; // for those who scroll by keyboard
}
for (const part of document.querySelectorAll("[data-for=seq2seq]")) part.hidden = !data.tree;

const redraws = new Set(); // what has colors of its own
const theme = byId("theme");
function dress(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  theme.setAttribute("aria-pressed", String(dark));
  theme.textContent = dark ? "Light" : "Dark";
  for (const redraw of redraws) redraw();
}
theme.addEventListener("click", () => dress(document.documentElement.dataset.theme !== "dark"));
dress(matchMedia("(prefers-color-scheme: dark)").matches);

/* tokens */
for (const [name, row] of [["source", data.source], ["target", data.target]]) {
  if (!row.length) continue;
  const list = element("ol", { class: `chips ${name}`, "aria-label": `${name} tokens` });
  row.slice(0, 400).forEach((token, place) => list.append(element("li", { title: token }, element("span", {}, String(place)), token)));
  const more = row.length > 400 ? ` (the first 400 of ${row.length})` : ` (${row.length})`;
  byId("token-rows").append(element("h3", { class: "steps-title" }, (data.target.length ? name[0].toUpperCase() + name.slice(1) : "Tokens") + more), list);
}
if (data.cut) byId("token-rows").append(element("p", { class: "hint" }, "The text was longer than the model takes, and has been cut."));
