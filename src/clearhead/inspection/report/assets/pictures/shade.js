// Cells as the pixels of a canvas.

/** Draw cells: blue for positive values, orange for negative ones, a separate color for null. */
export function shade(canvas, rows, columns, value) {
  canvas.width = columns;
  canvas.height = rows;
  const style = getComputedStyle(document.documentElement);
  const channels = (name) => style.getPropertyValue(name).split(",").map(Number);
  const low = channels("--map-low"), high = channels("--map-high"), negative = channels("--negative"), masked = channels("--masked");
  const image = new ImageData(columns, rows);
  for (let index = 0; index < rows * columns; index++) {
    const known = value(index), amount = known ?? 1, share = Math.abs(amount);
    const end = known === null ? masked : amount < 0 ? negative : high;
    for (let color = 0; color < 3; color++) image.data[4 * index + color] = low[color] + (end[color] - low[color]) * share;
    image.data[4 * index + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}
