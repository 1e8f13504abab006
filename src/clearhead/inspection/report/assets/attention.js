/* attention: a grid of heads, one large map, and lines between tokens */
const PART_NAMES = { encoder: "Encoder", decoder: "Decoder (causal)", cross: "Cross" };
const PART_TITLES = { encoder: "Encoder self-attention", decoder: "Decoder self-attention", cross: "Cross-attention" };
// With many keys all weights are small; their square roots are visible.
const usesRoot = ({ queries, keys }) => Math.max(queries, keys) > MAX_LINES;
const color = (map, byte) => (usesRoot(map) ? Math.sqrt(byte / 255) : byte / 255);

// A row of a decoder is the position that reads a token and produces the next one.
const ROWS = {
  encoder: {
    keys: data.source,
    label: (row) => display(data.source[row] ?? ""),
    name: (row) => `${row} ${quoted(data.source[row])}`,
    range: (first, last) => `${first} to ${last}`,
    hint: () => "A row is the token that gathers information; a column is a token that it gets information from.",
  },
  decoder: {
    keys: data.target,
    label: (row) => `${display(data.target[row] ?? "")} → ${display(produced[row] ?? "")}`,
    name: (row) => `${row} ${quoted(data.target[row])}, which produces ${row + 1} ${quoted(produced[row])},`,
    range: (first, last) => `${first} to ${last}`,
    hint: () => `A row is labeled “input token → token that it produces”. In the first row, the decoder has read only the start token ${quoted(data.target[0])}. `
      + "The upper right is empty: a position must not see later tokens, which do not exist yet when the model generates (causal mask).",
  },
  cross: {
    keys: data.source,
    label: (row) => display(produced[row] ?? ""),
    name: (row) => `To produce ${row + 1} ${quoted(produced[row])}, the decoder`,
    range: (first, last) => `To produce ${first + 1} to ${last + 1}, the decoder`,
    hint: () => `A row is labeled with the token that it produces, a column with a source token. In row ${quoted(produced[0])}, the decoder has read ${quoted(data.target[0])}, and looks at the source to produce ${quoted(produced[0])}.`,
  },
};
const SINKS = " A column that is strong in most rows, often punctuation or a special token, is usually where a head puts weight that it does not need (Clark et al. 2019).";

async function attention() {
  const parts = [...new Set(data.attention.map((one) => one.part))];
  if (!parts.length) return;
  const view = { part: parts.includes("cross") ? "cross" : parts[0], layer: 0, head: 0 };
  let map = null; // the head of the large map, with its weights
  let highlight = () => {};
  const tabs = element("div", { class: "bar", role: "group", "aria-label": "Attention type" });
  for (const part of parts) {
    tabs.append(element("button", { type: "button", "data-part": part, onclick: () => { Object.assign(view, { part, layer: 0, head: 0 }); render(); } }, PART_NAMES[part] || part));
  }
  const layers = element("select", { id: "layer", onchange: () => { view.layer = Number(layers.value); render(); } });
  tabs.append(element("label", { for: "layer" }, "Layer"), layers);
  const grid = element("div", { class: "grid", role: "listbox", "aria-label": "Heads", "aria-orientation": "horizontal" });
  const field = element("div", { id: "map", tabindex: "0", role: "application" }, panel());
  const [down, across] = ["down", "across"].map((side) => element("div", { class: `axis ${side}`, "aria-hidden": "true" }));
  const about = element("p", { class: "hint", id: "rows-hint" }), rounding = element("p", { class: "hint", id: "rounding" });
  const heading = element("h3"), scale = element("p", { class: "hint", id: "scale" }), caption = element("p", { class: "hint", id: "cell" });
  const lines = element("div", { class: "scroll", id: "lines" });
  const frame = element("div", { class: "map" }, across, down, field);
  const asText = element("details", { class: "as-text", ontoggle: () => listWeights() }, element("summary", {}, "As text"), element("ul"));
  byId("attention-view").append(tabs, grid, about, element("div", { class: "large" },
    element("div", {}, heading, scale, frame, caption, rounding, asText),
    element("div", {}, element("h3", {}, "Lines"), lines)));

  const current = () => data.attention.find((one) => one.part === view.part && one.layer === view.layer);

  async function render() {
    for (const tab of tabs.querySelectorAll("button")) tab.setAttribute("aria-pressed", String(tab.dataset.part === view.part));
    const these = data.attention.filter((one) => one.part === view.part);
    layers.replaceChildren(...these.map((one) => element("option", { value: one.layer, selected: one.layer === view.layer }, String(one.layer))));
    grid.replaceChildren();
    const one = current();
    one.heads.forEach((head, index) => {
      const small = element("canvas", { "aria-hidden": "true" });
      bytes(head.data).then((numbers) => shade(small, head.rows, head.columns, (at) => color(one, numbers[at])));
      grid.append(element("button", { type: "button", role: "option", "aria-selected": String(index === view.head), tabindex: index === view.head ? "0" : "-1", "aria-label": `Head ${head.head}`, onclick: () => selectHead(index) }, small, `head ${head.head}`));
    });
    await large();
  }

  function selectHead(index) {
    view.head = index;
    [...grid.children].forEach((button, number) => {
      button.setAttribute("aria-selected", String(number === index));
      button.tabIndex = number === index ? 0 : -1;
    });
    large();
  }

  grid.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const count = grid.children.length;
    selectHead((view.head + move + count) % count);
    grid.children[view.head].focus();
  });

  async function large() {
    const one = current(), head = one.heads[view.head], numbers = await bytes(head.data);
    if (one !== current() || head !== one.heads[view.head]) return; // another head was selected meanwhile
    const side = ROWS[one.part], [rows, columns] = [head.rows, head.columns];
    const queryLabels = Array.from({ length: one.queries }, (_, row) => side.label(row));
    map = { ...one, rows, columns, numbers, largest: head.largest, queryLabels, keyTokens: side.keys };
    frame.dataset.part = one.part;
    about.textContent = side.hint() + SINKS;
    heading.textContent = `${PART_TITLES[one.part] || one.part}, layer ${one.layer}, head ${head.head}`;
    const pooled = rows < one.queries || columns < one.keys;
    scale.textContent = `${pooled ? `${one.queries} × ${one.keys} tokens in ${rows} × ${columns} cells; each cell is the largest weight of its block. ` : ""}`
      + `Strongest color is ${digits(head.largest)}, the largest weight of the head${usesRoot(one) ? "; colors are proportional to the square root" : ""}.`;
    shade(field.querySelector("canvas"), rows, columns, (index) => color(one, numbers[index]));
    field.setAttribute("aria-label", `Attention map of ${rows} queries (rows) by ${columns} keys (columns)${pooled ? `, of ${one.queries} by ${one.keys} tokens` : ""}. Arrow keys move from cell to cell.`);
    caption.textContent = describe(restoreCell());
    rounding.textContent = "“±”: this page stores each weight in one byte, so a weight is rounded by up to this amount. The model computes in float32.";
    labelAxes();
    highlight = drawLines(lines, map);
    listWeights();
  }

  // A cell of a pooled map covers several tokens.
  const nameOfQuery = ([first, last]) => (last > first ? ROWS[map.part].range(first, last) : ROWS[map.part].name(first));
  const nameOfKey = ([first, last]) => (last > first ? `${first} to ${last}` : `${first} ${quoted(map.keyTokens[first])}`);
  const weight = (row, column) => (map.numbers[row * map.columns + column] * map.largest) / 255;
  function describe({ row, column }) {
    if (!map) return "";
    const query = nameOfQuery(span(row, map.rows, map.queries)), key = nameOfKey(span(column, map.columns, map.keys));
    return `${query} attends to ${key}: ${withError(weight(row, column), map.largest / 510)}`;
  }
  const restoreCell = addNavigation(field, describe, (at) => { caption.textContent = describe(at); highlight(at.row); }, () => highlight(null));

  // Write the tokens at the map, as many as fit.
  function labelAxes() {
    if (!map) return;
    const box = field.getBoundingClientRect();
    for (const [axis, side, length, cells, all, tokens] of [[down, "top", box.height, map.rows, map.queries, map.queryLabels], [across, "left", box.width, map.columns, map.keys, map.keyTokens.map(display)]]) {
      const every = Math.max(1, Math.ceil((cells * 16) / Math.max(length, 1)));
      axis.replaceChildren();
      for (let cell = 0; cell < cells; cell += every) {
        const [first, last] = span(cell, cells, all), text = last > first ? String(first) : tokens[first] ?? "";
        axis.append(element("span", { style: `${side}:${(100 * (cell + 0.5)) / cells}%` }, element("bdi", {}, text)));
      }
    }
  }
  new ResizeObserver(labelAxes).observe(field);

  function listWeights() {
    if (!asText.open || !map) return;
    asText.querySelector("ul").replaceChildren(...Array.from({ length: map.rows }, (_, row) => {
      const largest = Array.from({ length: map.columns }, (_, column) => [weight(row, column), column]).sort((one, other) => other[0] - one[0]).slice(0, 3);
      const keys = largest.filter(([share]) => share > 0).map(([share, column]) => `${nameOfKey(span(column, map.columns, map.keys))} ${digits(share)}`);
      return element("li", {}, `${nameOfQuery(span(row, map.rows, map.queries))} attends most to ${keys.join(", ") || "nothing"}`);
    }));
  }

  redraws.add(render);
  await render();
}

attention().then(() => { document.documentElement.dataset.ready = "yes"; });
