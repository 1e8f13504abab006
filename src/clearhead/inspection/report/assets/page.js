/* data, header, colors and tokens */
const data = JSON.parse(byId("data").textContent);
const unpacked = new Map();

// Return the bytes of a blob, unpacked on first use.
function bytes(index) {
  if (!unpacked.has(index)) unpacked.set(index, inflate(data.blobs[index]));
  return unpacked.get(index);
}

// The token that the decoder produces at each position of its input.
const produced = data.target.length ? [...data.target.slice(1), data.output_tokens.at(-1).token] : [];

addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

/* header */
byId("about").textContent = `${data.model}: ${data.kind}, ${data.parameters.toLocaleString("en")} parameters, ${data.steps.length} steps${data.texts ? `; text 1 of ${data.texts.length}` : ""}`;
byId("text").textContent = data.text;
if (!data.text.trim()) byId("text").before(element("p", { class: "hint" }, "The text is empty."));
document.title = `${truncate(data.text, 60)} – Clearhead`;
if (data.output !== undefined) {
  byId("output").textContent = data.output;
  byId("output").hidden = false;
}
for (const block of [byId("text"), byId("output")]) {
  if (block.scrollHeight > block.clientHeight) block.tabIndex = 0; // scrollable by keyboard
}
const sections = { seq2seq: data.tree, vector: data.vectors, several: data.cosines, labels: data.labels };
for (const part of document.querySelectorAll("[data-for]")) part.hidden = !sections[part.dataset.for];
for (const link of document.querySelectorAll("a[href^='#']")) {
  link.addEventListener("click", (event) => { // in a notebook's frame, the address would be that of the notebook
    event.preventDefault();
    const section = document.querySelector(link.getAttribute("href"));
    section.scrollIntoView();
    section.focus({ preventScroll: true });
  });
}

const redraws = new Set(); // called after a change of colors
const theme = byId("theme");
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  theme.textContent = dark ? "Light" : "Dark";
  theme.setAttribute("aria-label", `${theme.textContent} colors`);
  for (const redraw of redraws) redraw();
}
theme.addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
setTheme(matchMedia("(prefers-color-scheme: dark)").matches);

// Show the start of a long list, and a button for all of it. `show` takes the number of items.
const SHORT = 60;
function showSome(parent, total, noun, show) {
  show(Math.min(total, SHORT));
  if (total <= SHORT) return;
  const button = element("button", { type: "button", class: "more", onclick: () => { show(total); button.remove(); parent.tabIndex = -1; parent.focus(); } }, `Show all ${total} ${noun}`);
  parent.append(button);
}

/* tokens */
function tokenRow(name, title, row) {
  const list = element("ol", { class: `chips ${name}`, "aria-label": `${title} tokens` }), box = element("div", {}, list);
  byId("token-rows").append(element("h3", { class: "steps-title" }, `${title} (${row.length})`), box);
  showSome(box, row.length, "tokens", (count) => {
    list.replaceChildren(...row.slice(0, count).map((token, index) => element("li", { title: token }, element("span", {}, String(index)), token)));
  });
}

// Explain the marks in the tokens of the page.
function marks(tokens) {
  const texts = ["The model reads tokens: the entries of its vocabulary that make up the text."];
  const first = tokens.find((token) => token.startsWith("▁") && token.length > 1), next = tokens.find((token) => /^##./.test(token));
  if (first) texts.push(`“▁” marks the start of a word, as in “${truncate(first, 20)}”; a token without it continues the word before.`);
  if (next) texts.push(`“##” marks the continuation of a word, as in “${truncate(next, 20)}”.`);
  const special = [...new Set(tokens.filter((token) => /^(<[^<>0]{1,12}>|\[[A-Z]{2,5}\])$/.test(token)))].slice(0, 5);
  if (special.length) texts.push(`${special.join(", ")}: special token${special.length > 1 ? "s" : ""}, not from the text. ${special.length > 1 ? "They mark" : "It marks"} places such as the start or the end.`);
  return texts.join(" ");
}

function startHint() {
  const { length, start } = data.prompt, reused = start ? ` This model uses its ${start} for it.` : "";
  const given = length > 1 ? ` Token${length > 2 ? `s 1 to ${length - 1} are` : " 1 is"} given, too, such as the target language.` : "";
  return `Token 0, ${quoted(data.target[0])}, is the start token: the decoder needs an input before it has produced anything.${reused}${given} `
    + `At each position, the decoder reads all tokens so far and produces the next one. The output ends with ${quoted(produced.at(-1))}.`;
}

byId("token-rows").append(element("p", { class: "hint" }, marks([...data.source, ...data.target])));
tokenRow("source", data.target.length ? "Source" : data.texts ? "Tokens of text 1" : "Tokens", data.source);
if (data.truncated) byId("token-rows").append(element("p", { class: "hint" }, `The text is too long for the model. It was truncated to ${plural(data.source.length, "token")}.`));
if (data.target.length) {
  tokenRow("target", "Target", [data.target[0], ...produced]);
  byId("token-rows").append(element("p", { class: "hint", id: "start" }, startHint()));
}
if (data.texts) byId("token-rows").append(element("p", { class: "hint" }, `Tokens, pipeline and attention are those of text 1. All ${data.texts.length} texts are compared at the end.`));
