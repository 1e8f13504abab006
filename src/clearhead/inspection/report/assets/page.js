"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// Create an element. Children are text nodes, so any text is safe.
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value; // a server's policy may forbid style attributes
    else if (value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function svgElement(tag, attributes = {}, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) name === "style" ? (node.style.cssText = value) : node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const display = (token) => token.replace(/^▁/, "") || token || "·";
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });

// Truncate a text to a number of graphemes, so that emojis and accented letters stay complete.
function truncate(text, limit) {
  const graphemes = Array.from(segmenter.segment(text), (part) => part.segment);
  return graphemes.length > limit ? `${graphemes.slice(0, limit - 1).join("")}…` : text;
}

const digits = (number) => {
  if (number === 0) return "0";
  const size = Math.abs(number);
  return size >= 1000 || size < 0.001 ? number.toExponential(2) : number.toPrecision(3);
};

// Format a value with its error, which includes the rounding of the value.
function withError(number, error) {
  const decimals = Math.min(100, Math.max(0, -Math.floor(Math.log10(error)))), unit = 10 ** -decimals;
  return `${number.toFixed(decimals)} ± ${(Math.ceil(error / unit + 0.5) * unit).toFixed(decimals)}`;
}

/* tooltip, and announcements to screen readers */
const tip = byId("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - box.height - 8))}px`;
}
const hideTip = () => { tip.hidden = true; };
const announce = (text) => { byId("status").textContent = text; };
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

/* header */
byId("about").textContent = `${data.model}: ${data.kind}, ${data.parameters.toLocaleString("en")} parameters, ${data.steps.length} steps`;
byId("text").textContent = data.text;
document.title = `${truncate(data.text, 60)} – Clearhead`;
if (data.output !== undefined) {
  byId("output").textContent = data.output;
  byId("output").hidden = false;
}
for (const block of [byId("text"), byId("output")]) {
  if (block.scrollHeight > block.clientHeight) block.tabIndex = 0; // scrollable by keyboard
}
for (const part of document.querySelectorAll("[data-for=seq2seq]")) part.hidden = !data.tree;

const redraws = new Set(); // called after a change of colors
const theme = byId("theme");
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  theme.setAttribute("aria-pressed", String(dark));
  theme.textContent = dark ? "Light" : "Dark";
  for (const redraw of redraws) redraw();
}
theme.addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
setTheme(matchMedia("(prefers-color-scheme: dark)").matches);

/* tokens */
for (const [name, row] of [["source", data.source], ["target", data.target]]) {
  if (!row.length) continue;
  const list = element("ol", { class: `chips ${name}`, "aria-label": `${name} tokens` });
  row.slice(0, 400).forEach((token, index) => list.append(element("li", { title: token }, element("span", {}, String(index)), token)));
  const more = row.length > 400 ? ` (the first 400 of ${row.length})` : ` (${row.length})`;
  byId("token-rows").append(element("h3", { class: "steps-title" }, (data.target.length ? name[0].toUpperCase() + name.slice(1) : "Tokens") + more), list);
}
if (data.truncated) byId("token-rows").append(element("p", { class: "hint" }, "The text was truncated to the maximum length of the model."));
