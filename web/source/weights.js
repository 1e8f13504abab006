// From the file of weights to the float32 numbers that the graphs read.

let halves = null;

/** Return the float32 number of each of the 65,536 float16 numbers. */
function halfTable() {
  if (!halves) {
    halves = new Float32Array(65536);
    for (let bits = 0; bits < 65536; bits++) {
      const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
      if (exponent === 31) halves[bits] = fraction ? NaN : sign * Infinity;
      else halves[bits] = exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
    }
  }
  return halves;
}

const EXPAND = {
  float32: (buffer, offset, size, _, target) => target.set(new Float32Array(buffer, offset, size)),
  float16(buffer, offset, size, _, target) {
    const table = halfTable(), codes = new Uint16Array(buffer, offset, size);
    for (let index = 0; index < size; index++) target[index] = table[codes[index]];
  },
  int8(buffer, offset, size, rows, target) {
    const scales = new Float32Array(buffer, offset, rows), codes = new Int8Array(buffer, offset + 4 * rows, size), columns = size / rows;
    for (let row = 0, index = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, index++) target[index] = codes[index] * scales[row];
    }
  },
};

const BYTES = { float32: (size) => 4 * size, float16: (size) => 2 * size, int8: (size, rows) => 4 * rows + size };

/**
 * Return all tensors in float32, one after another, as bytes.
 *
 * `bytes` is the content of weights.bin, `tensors` its list [{dtype, rows, columns}] in model.json.
 */
export function expandWeights(bytes, tensors) {
  const stored = ({ dtype, rows, columns }) => (BYTES[dtype](rows * columns, rows) + 3) & ~3;
  const size = tensors.reduce((sum, tensor) => sum + stored(tensor), 0);
  if (size !== bytes.length) throw new Error(`model/weights.bin could not be loaded: it has ${bytes.length} bytes instead of ${size}`);
  const total = tensors.reduce((sum, { rows, columns }) => sum + rows * columns, 0);
  const expanded = new Float32Array(total), { buffer, byteOffset } = bytes;
  let read = byteOffset, written = 0;
  for (const tensor of tensors) {
    const { dtype, rows, columns } = tensor, count = rows * columns;
    EXPAND[dtype](buffer, read, count, rows, expanded.subarray(written, written + count));
    read += stored(tensor);
    written += count;
  }
  return new Uint8Array(expanded.buffer);
}
