// The first page: type a sentence, and see its translation, its tokens and one map of cross-attention.
import { load } from "../clearhead.js";

const byId = (id) => document.getElementById(id);
const MAX_COLUMNS = 80; // tokens that a map shows

function element(tag, attributes = {}, ...children) {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(...children);
  return node;
}

/** Return a table of numbers from 0 to 1 with shaded cells. */
function fillTable(table, rows, columns, value) {
  const head = element("tr", {}, element("td"), ...columns.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map((name, row) => {
    const cells = columns.map((_, column) => {
      const number = value(row, column), cell = element("td", { title: number.toFixed(4) }, number.toFixed(2));
      cell.style.background = `rgba(var(--map), ${Math.max(0, Math.min(1, number))})`;
      cell.classList.toggle("dark", number > 0.5);
      return cell;
    });
    return element("tr", {}, element("th", { scope: "row" }, name), ...cells);
  });
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

const note = (truncated) => (truncated ? "The text is longer than the model takes: its end was cut." : "");

function showTranslator(model) {
  let result = null, running = null;
  const fill = (select, count) => select.replaceChildren(...Array.from({ length: count }, (_, index) => element("option", { value: index }, String(index + 1))));
  fill(byId("layer"), model.sizes.decoder.layers);
  fill(byId("head"), model.sizes.decoder.heads);
  byId("layer").selectedIndex = model.sizes.decoder.layers - 1;

  function showMap() {
    const { attention, tokens, source } = result;
    if (!tokens.length) {
      byId("map").replaceChildren();
      return;
    }
    const { data, shape: [, heads, length, width] } = attention.cross;
    const start = (Number(byId("layer").value) * heads + Number(byId("head").value)) * length * width;
    fillTable(byId("map"), tokens.slice(0, MAX_COLUMNS), source.tokens.slice(0, MAX_COLUMNS), (row, column) => data[start + row * width + column]);
  }

  async function update() {
    running?.abort();
    const own = (running = new AbortController());
    document.documentElement.dataset.busy = "yes";
    try {
      result = await model.translate(byId("text").value, { numBeams: Number(byId("beams").value), signal: own.signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      throw error;
    }
    if (own !== running) return;
    const { source, text, tokens, logProbs } = result;
    byId("note").textContent = note(source.truncated);
    byId("output").textContent = text;
    byId("source").replaceChildren(...source.tokens.map((token) => element("li", {}, token)));
    const chance = (index) => element("small", { title: "probability" }, `${(100 * Math.exp(logProbs[index])).toFixed(0)} %`);
    byId("target").replaceChildren(...tokens.map((token, index) => element("li", {}, token, chance(index))));
    showMap();
    delete document.documentElement.dataset.busy;
  }

  byId("text").addEventListener("input", update);
  byId("beams").addEventListener("change", update);
  byId("layer").addEventListener("change", showMap);
  byId("head").addEventListener("change", showMap);
  byId("translator").hidden = false;
  return update();
}

function showEncoder(model) {
  let running = null;
  async function update() {
    running?.abort();
    const own = (running = new AbortController());
    document.documentElement.dataset.busy = "yes";
    const lines = byId("texts").value.split("\n").filter((line) => line.trim()).slice(0, 20);
    let result;
    try {
      result = await model.encode(lines, { signal: own.signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      throw error;
    }
    if (own !== running) return;
    byId("texts-note").textContent = note(result.texts.some(({ truncated }) => truncated));
    const names = result.texts.map(({ text }) => (text.length > 40 ? `${text.slice(0, 39)}…` : text));
    fillTable(byId("cosines"), names, names.map((_, index) => String(index + 1)), (row, column) => result.cosines[row][column]);
    byId("text-tokens").replaceChildren(...result.texts.map(({ tokens }) => element("ol", { className: "chips" }, ...tokens.map((token) => element("li", {}, token)))));
    delete document.documentElement.dataset.busy;
  }
  byId("texts").addEventListener("input", update);
  byId("encoder").hidden = false;
  return update();
}

async function start() {
  const status = byId("status"), failure = byId("failure");
  failure.hidden = true;
  status.hidden = false;
  try {
    const onProgress = (bytes) => { status.textContent = `Loading the model … ${(bytes / 1e6).toFixed(1)} MB`; };
    const model = await load(".", { onProgress });
    byId("name").textContent = model.name;
    await (model.kind === "encoder" ? showEncoder(model) : showTranslator(model));
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    failure.querySelector("span").textContent = `The model was not loaded: ${error.message}.`;
    failure.hidden = false;
  } finally {
    status.hidden = true;
  }
}

byId("failure").querySelector("button").addEventListener("click", start);
start();
