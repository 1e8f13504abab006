/* pictures of numbers: a cell is a number, or a block of them */
const unpacked = new Map();

// The bytes at a place of the page's data, unpacked when they are first needed.
function bytes(place) {
  if (!unpacked.has(place)) {
    const packed = Uint8Array.from(atob(data.blobs[place]), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked.set(place, new Response(stream).arrayBuffer().then((buffer) => new Uint8Array(buffer)));
  }
  return unpacked.get(place);
}

// A cell's color: from the paper to blue, to orange where negative; null has one of its own.
function shade(canvas, rows, columns, value) {
  canvas.width = columns;
  canvas.height = rows;
  const style = getComputedStyle(document.documentElement);
  const part = (name) => style.getPropertyValue(name).split(",").map(Number);
  const low = part("--map-low"), high = part("--map-high"), negative = part("--negative"), masked = part("--masked");
  const image = new ImageData(columns, rows);
  for (let place = 0; place < rows * columns; place++) {
    const known = value(place), amount = known ?? 1, share = Math.abs(amount);
    const end = known === null ? masked : amount < 0 ? negative : high;
    for (let color = 0; color < 3; color++) image.data[4 * place + color] = low[color] + (end[color] - low[color]) * share;
    image.data[4 * place + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// What a cell stands for, where `cells` of them share `length` places.
const span = (place, cells, length) => [Math.floor((place * length) / cells), Math.floor(((place + 1) * length) / cells) - 1];
const panel = () => element("div", { class: "panel" }, element("canvas", { "aria-hidden": "true" }));

// Lets people read cells by pointer and by arrow keys, in panels of as many rows and columns each.
// `describe` gives a cell in words; `moved` and `left` hear where the reader is.
function readable(box, describe, moved = () => {}, left = () => {}) {
  const marker = element("div", { class: "marker", hidden: true });
  const at = { panel: 0, row: 0, column: 0 };
  const panels = () => [...box.querySelectorAll(".panel")];
  const size = () => { const canvas = box.querySelector("canvas"); return [canvas.height, canvas.width]; };

  function put() {
    const [rows, columns] = size();
    marker.style.cssText = `left:${(100 * at.column) / columns}%;top:${(100 * at.row) / rows}%;width:${100 / columns}%;height:${100 / rows}%`;
    panels()[at.panel].append(marker);
  }
  function stop() {
    marker.hidden = true;
    hush();
    left();
  }
  function go(number, row, column) {
    Object.assign(at, { panel: number, row, column });
    put();
    moved(at);
  }
  box.addEventListener("pointermove", (event) => {
    const number = panels().findIndex((one) => one.contains(event.target));
    if (number < 0) return;
    const place = panels()[number].querySelector("canvas").getBoundingClientRect(), [rows, columns] = size();
    const cell = (offset, length, count) => Math.max(0, Math.min(count - 1, Math.floor((offset / length) * count)));
    go(number, cell(event.clientY - place.top, place.height, rows), cell(event.clientX - place.left, place.width, columns));
    tell(describe(at), event.clientX, event.clientY);
  });
  box.addEventListener("pointerleave", () => { hush(); if (document.activeElement !== box) left(); });
  box.addEventListener("click", () => box.focus());
  box.addEventListener("focus", () => { put(); marker.hidden = false; moved(at); say(describe(at)); });
  box.addEventListener("blur", stop);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const [rows, columns] = size(), last = panels().length * columns - 1;
    const across = Math.max(0, Math.min(last, at.panel * columns + at.column + move[1])); // panels stand side by side
    go(Math.floor(across / columns), Math.max(0, Math.min(rows - 1, at.row + move[0])), across % columns);
    marker.hidden = false;
    const place = marker.getBoundingClientRect();
    tell(describe(at), place.right, place.bottom);
    say(describe(at));
  });
  return () => { // other numbers have come: the place stays, as far as there is such a one
    const [rows, columns] = size();
    Object.assign(at, { panel: Math.min(at.panel, panels().length - 1), row: Math.min(at.row, rows - 1), column: Math.min(at.column, columns - 1) });
    put();
    return at;
  };
}
