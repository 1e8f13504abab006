// From a graph whose weights are in a file to a graph that contains them. Both are protocol buffers of ONNX.

const GRAPH = 7, INITIALIZER = 5; // fields of ModelProto and GraphProto
const RAW_DATA = 9, EXTERNAL_DATA = 13, DATA_LOCATION = 14; // fields of TensorProto
const KEY = 1, VALUE = 2; // fields of StringStringEntryProto
const BYTES = 2; // wire type of bytes, texts and messages

/** Return the graph with its weights, which are float32 numbers one after another. */
export function embedWeights(graph, weights) {
  return joined(withField(graph, GRAPH, (part) => withField(part, INITIALIZER, (tensor) => embedTensor(tensor, weights))));
}

/** Return the parts of a message in which `change` replaced the content of each field with this number. */
function withField(message, number, change) {
  return fieldsOf(message).flatMap((field) => (field.number === number ? fieldParts(number, change(field.content)) : [field.bytes]));
}

function embedTensor(tensor, weights) {
  const fields = fieldsOf(tensor), place = {};
  for (const { number, content } of fields) {
    if (number !== EXTERNAL_DATA) continue;
    const entry = Object.fromEntries(fieldsOf(content).map((field) => [field.number, new TextDecoder().decode(field.content)]));
    place[entry[KEY]] = entry[VALUE];
  }
  if (!place.location) return [tensor];
  const from = Number(place.offset ?? 0), data = weights.subarray(from, from + Number(place.length));
  const others = fields.filter(({ number }) => number !== EXTERNAL_DATA && number !== DATA_LOCATION);
  return [...others.map(({ bytes }) => bytes), ...fieldParts(RAW_DATA, [data])];
}

/** Return the fields of a message: {number, bytes}, with the `content` of bytes, texts and messages. */
function fieldsOf(message) {
  const fields = [];
  let at = 0;
  const integer = () => {
    let result = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = message[at++];
      result += (byte & 127) * scale;
      if (byte < 128) return result;
    }
  };
  while (at < message.length) {
    const start = at, key = integer(), number = Math.floor(key / 8), type = key & 7;
    const size = { 1: 8, 5: 4, [BYTES]: -1 }[type] ?? 0, length = type === BYTES ? integer() : size;
    if (type === 0) integer();
    at += length;
    fields.push({ number, bytes: message.subarray(start, at), content: type === BYTES ? message.subarray(at - length, at) : null });
  }
  return fields;
}

function fieldParts(number, content) {
  return [varint(number * 8 + BYTES), varint(content.reduce((sum, part) => sum + part.length, 0)), ...content];
}

function varint(value) {
  const bytes = [];
  for (; value >= 128; value = Math.floor(value / 128)) bytes.push((value % 128) + 128);
  return Uint8Array.from([...bytes, value]);
}

function joined(parts) {
  const result = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    result.set(part, at);
    at += part.length;
  }
  return result;
}
