/* attention: a grid of heads, one large map, and lines between tokens */
const PART_NAMES = { encoder: "Encoder", decoder: "Decoder (causal)", cross: "Cross" };
const MAX_LINES = 60;
const MIN_WEIGHT = 0.04;
// With many keys all weights are small; their square roots are visible.
const usesRoot = ({ queries, keys }) => Math.max(queries, keys) > MAX_LINES;
const color = (map, byte) => (usesRoot(map) ? Math.sqrt(byte / 255) : byte / 255);

function tokensOf(part) {
  if (part === "cross") return [data.target, data.source];
  return part === "decoder" ? [data.target, data.target] : [data.source, data.source];
}

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
  const heading = element("h3"), scale = element("p", { class: "hint" }), caption = element("p", { class: "hint", id: "cell" });
  const lines = element("div", { class: "scroll", id: "lines" });
  const asText = element("details", { class: "as-text", ontoggle: () => listWeights() }, element("summary", {}, "As text"), element("ul"));
  byId("attention-view").append(tabs, grid, element("div", { class: "large" },
    element("div", {}, heading, scale, element("div", { class: "map" }, across, down, field), caption, asText),
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
    const [queries, keys] = tokensOf(one.part), [rows, columns] = [head.rows, head.columns];
    map = { ...one, rows, columns, numbers, largest: head.largest, queryTokens: queries, keyTokens: keys };
    heading.textContent = `${PART_NAMES[one.part] || one.part}, layer ${one.layer}, head ${head.head}`;
    const pooled = rows < one.queries || columns < one.keys;
    scale.textContent = `${pooled ? `${one.queries} × ${one.keys} tokens in ${rows} × ${columns} cells; each cell is the largest weight of its block. ` : ""}`
      + `Darkest color is ${digits(head.largest)}, the largest weight of the head${usesRoot(one) ? "; colors are proportional to the square root" : ""}.`;
    shade(field.querySelector("canvas"), rows, columns, (index) => color(one, numbers[index]));
    field.setAttribute("aria-label", `Attention map of ${rows} queries (rows) by ${columns} keys (columns)${pooled ? `, of ${one.queries} by ${one.keys} tokens` : ""}. Arrow keys move from cell to cell.`);
    caption.textContent = describe(restoreCell());
    labelAxes();
    highlight = drawLines(lines, map);
    listWeights();
  }

  // A cell of a pooled map covers several tokens.
  function name(tokens, [first, last]) {
    return last > first ? `${first} to ${last}` : `${first} “${display(tokens[first] ?? "")}”`;
  }
  const weight = (row, column) => (map.numbers[row * map.columns + column] * map.largest) / 255;
  function describe({ row, column }) {
    if (!map) return "";
    const query = name(map.queryTokens, span(row, map.rows, map.queries)), key = name(map.keyTokens, span(column, map.columns, map.keys));
    return `${query} attends to ${key}: ${withError(weight(row, column), map.largest / 510)}`;
  }
  const restoreCell = addNavigation(field, describe, (at) => { caption.textContent = describe(at); highlight(at.row); }, () => highlight(null));

  // Write the tokens at the map, as many as fit.
  function labelAxes() {
    if (!map) return;
    const box = field.getBoundingClientRect();
    for (const [axis, side, length, cells, all, tokens] of [[down, "top", box.height, map.rows, map.queries, map.queryTokens], [across, "left", box.width, map.columns, map.keys, map.keyTokens]]) {
      const every = Math.max(1, Math.ceil((cells * 16) / Math.max(length, 1)));
      axis.replaceChildren();
      for (let cell = 0; cell < cells; cell += every) {
        const [first, last] = span(cell, cells, all), text = last > first ? String(first) : display(tokens[first] ?? "");
        axis.append(element("span", { style: `${side}:${(100 * (cell + 0.5)) / cells}%` }, element("bdi", {}, text)));
      }
    }
  }
  new ResizeObserver(labelAxes).observe(field);

  function listWeights() {
    if (!asText.open || !map) return;
    asText.querySelector("ul").replaceChildren(...Array.from({ length: map.rows }, (_, row) => {
      const largest = Array.from({ length: map.columns }, (_, column) => [weight(row, column), column]).sort((one, other) => other[0] - one[0]).slice(0, 3);
      const keys = largest.filter(([share]) => share > 0).map(([share, column]) => `${name(map.keyTokens, span(column, map.columns, map.keys))} ${digits(share)}`);
      return element("li", {}, `${name(map.queryTokens, span(row, map.rows, map.queries))} attends most to ${keys.join(", ") || "nothing"}`);
    }));
  }

  redraws.add(render);
  await render();
}

// Draw the lines of a head, and return a function that highlights one row, or all rows for null.
function drawLines(parent, { queries, keys, rows, columns, numbers, largest, queryTokens, keyTokens }) {
  const step = 21, width = 420;
  if (rows < queries || columns < keys || rows > MAX_LINES || columns > MAX_LINES) {
    parent.replaceChildren(element("p", { class: "hint" }, `Lines are drawn for up to ${MAX_LINES} tokens.`));
    return () => {};
  }
  const height = step * Math.max(rows, columns) + 10;
  const picture = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": "Lines from each query, on the left, to the keys that it attends to" });
  const paths = [];
  for (let row = 0; row < rows; row++) {
    const most = Math.max(...numbers.subarray(row * columns, (row + 1) * columns));
    for (let column = 0; column < columns; column++) {
      const share = (numbers[row * columns + column] * largest) / 255;
      if (share < MIN_WEIGHT && (numbers[row * columns + column] < most || most === 0)) continue;
      const line = svgElement("line", { x1: 132, y1: row * step + 14, x2: width - 132, y2: column * step + 14, stroke: "var(--accent)", "stroke-width": 0.6 + 4 * share, "stroke-opacity": 0.12 + 0.88 * share });
      paths.push([row, line]);
      picture.append(line);
    }
  }
  const highlight = (row) => { for (const [own, line] of paths) line.style.opacity = row === null || own === row ? 1 : 0.06; };
  const word = (token, x, y, anchor) => {
    const text = svgElement("text", { x, y, "text-anchor": anchor }, truncate(display(token), 16));
    picture.append(text);
    return text;
  };
  for (let row = 0; row < rows; row++) {
    const text = word(queryTokens[row] ?? "", 126, row * step + 18, "end");
    text.addEventListener("pointerenter", () => highlight(row));
    text.addEventListener("pointerleave", () => highlight(null));
  }
  for (let column = 0; column < columns; column++) word(keyTokens[column] ?? "", width - 126, column * step + 18, "start");
  parent.replaceChildren(element("p", { class: "hint" }, `Lines show the largest weight of each query, and all weights of at least ${MIN_WEIGHT}.`), picture);
  return highlight;
}
attention().then(() => { document.documentElement.dataset.ready = "yes"; });
