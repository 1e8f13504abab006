/* elements, text and announcements; a page that uses them has the elements #tip and #status */
const SVG = "http://www.w3.org/2000/svg";
export const byId = (id) => document.getElementById(id);

// Create an element. Children are text nodes, so any text is safe.
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value; // a server's policy may forbid style attributes
    else if (value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function svgElement(tag, attributes = {}, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) name === "style" ? (node.style.cssText = value) : node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// A token without the mark of a word's start; a token that is only the mark is a dot.
export const display = (token) => token.replace(/^▁/, "") || token || "·";
export const quoted = (token) => `“${display(token ?? "")}”`;
const segmenter = Intl.Segmenter && new Intl.Segmenter(undefined, { granularity: "grapheme" }); // Firefox has it since 2024

// Return what a reader sees as one character each: letters with their accents, complete emojis.
export const graphemesOf = (text) => (segmenter ? Array.from(segmenter.segment(text), (part) => part.segment) : Array.from(text));

// Truncate a text to a number of graphemes, so that emojis and accented letters stay complete.
export function truncate(text, limit) {
  const graphemes = graphemesOf(text);
  return graphemes.length > limit ? `${graphemes.slice(0, limit - 1).join("")}…` : text;
}

const ruler = document.createElement("canvas").getContext("2d");

// Truncate a text to a width in pixels, at the end of a grapheme.
export function fit(text, width, size = 12) {
  ruler.font = `${size}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;
  if (ruler.measureText(text).width <= width) return text;
  const graphemes = graphemesOf(text).slice(0, 60);
  while (graphemes.length > 1 && ruler.measureText(`${graphemes.join("")}…`).width > width) graphemes.pop();
  return `${graphemes.join("")}…`;
}

export const plural = (count, noun) => (count === 1 ? `${count} ${noun}` : `${count} ${noun}s`);
// A number with a fixed count of decimals and a true minus.
export const fixed = (number, decimals) => number.toFixed(decimals).replace("-", "−");
export const percent = (probability) => `${(100 * probability).toFixed(1)} %`;

export const digits = (number) => {
  if (number === 0) return "0";
  const size = Math.abs(number);
  return size >= 1000 || size < 0.001 ? number.toExponential(2) : number.toPrecision(3);
};

// Format a value with its error, which includes the rounding of the value.
export function withError(number, error) {
  const decimals = Math.min(100, Math.max(0, -Math.floor(Math.log10(error)))), unit = 10 ** -decimals;
  return `${number.toFixed(decimals)} ± ${(Math.ceil(error / unit + 0.5) * unit).toFixed(decimals)}`;
}

/* tooltip, and announcements to screen readers */
export function showTip(text, x, y) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - box.height - 8))}px`;
}
export const hideTip = () => { byId("tip").hidden = true; };
export const announce = (text) => { byId("status").textContent = text; };
