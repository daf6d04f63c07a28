// Computes the ONNX files that models_test.cc has written with ONNX Runtime (npm: onnxruntime-web) and compares the logits.
// usage: node onnx_reader.mjs FOLDER MODULE      MODULE: the folder of onnxruntime-web; the files of FOLDER are those of models.py
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";

const [folder, module] = process.argv.slice(2);
const ort = createRequire(import.meta.url)(module);
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

function floats(file) {
    const bytes = fs.readFileSync(file);
    return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
}

/// Of logits by position, those of a text as rows: the softmax over classes, [N, positions, classes].
function probabilities(logits, [N, first, ...rest], text) {
    const positions = text ? first : rest.reduce((a, b) => a * b, 1), classes = text ? rest[0] : first;
    const all = new Float32Array(logits.length);
    for (let row = 0; row < N * positions; ++row) {
        const sample = Math.floor(row / positions), position = row % positions;
        const at = k => (text ? row * classes + k : (sample * classes + k) * positions + position);
        const values = Array.from({ length: classes }, (_, k) => logits[at(k)]);
        const most = Math.max(...values), powers = values.map(value => Math.exp(value - most)), sum = powers.reduce((a, b) => a + b);
        powers.forEach((power, k) => (all[row * classes + k] = power / sum));
    }
    return all;
}

const files_all = fs.readdirSync(folder);
const files = files_all.filter(name => name.endsWith(".onnx")).sort();
for (const name of files) {
    const base = path.join(folder, name.slice(0, -".onnx".length));
    const data = name + ".data";   // tensors of a model in two files
    const externalData = files_all.includes(data) ? [{ path: data, data: fs.readFileSync(path.join(folder, data)) }] : [];
    const session = await ort.InferenceSession.create(fs.readFileSync(base + ".onnx"), { executionProviders: ["wasm"], externalData });
    const input = floats(base + ".input"), shape = [...new Uint32Array(floats(base + ".shape").buffer)];
    const text = session.inputNames[0] === "tokens";
    let tensor = new ort.Tensor("float32", input, shape);
    if (text) {
        const length = shape[3], tokens = [];   // the last token of a window is a label only
        input.forEach((token, i) => (i % length < length - 1 ? tokens.push(BigInt(token)) : 0));
        tensor = new ort.Tensor("int64", BigInt64Array.from(tokens), [shape[0], length - 1]);
    }
    const { logits } = await session.run({ [session.inputNames[0]]: tensor });
    const by_position = fs.existsSync(base + ".probabilities");
    const wanted = floats(base + (by_position ? ".probabilities" : ".logits"));
    const found = by_position ? probabilities(logits.data, logits.dims, text) : logits.data;
    if (found.length !== wanted.length) throw new Error(`${name}: ${found.length} values, not ${wanted.length}`);
    const size = wanted.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const worst = wanted.reduce((most, value, i) => Math.max(most, Math.abs(value - found[i])), 0);
    console.log(`${name}: up to ${size.toFixed(3)}, differ by ${worst.toExponential(2)} at most`);
    if (!(worst <= 1e-4 * Math.max(1, size))) throw new Error(`${name} differs`);
}
console.log(`${files.length} files agree`);
process.exit(0);
