// embedding:  y[row] = w[token of the row];  dw[token] = sum of dy over its rows.  The tokens of a text are the net's input.
// positions:  y[n,p] = x[n,p] + w[p].
//
// The gradient is a gather: a thread block owns a token and some channels, looks for the token in its chunk of the rows, and adds the rows
// that have it in order.  Where the vocabulary is small the rows are cut into chunks, whose sums a second kernel adds in order.
#include "nn/cuda/build.h"
#include "nn/cuda/element.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t sought = 8, batch = 4;   // rows of a thread that are compared at once; rows whose loads are in flight at once
constexpr uint32_t blocks_wanted = 1056, chunks_most = 32;

/// How the rows are cut.  Depends on the shape alone.
uint32_t chunks_of(uint32_t vocabulary, uint32_t C) {
    return std::clamp<uint32_t>(static_cast<uint32_t>(blocks_wanted / (uint64_t{vocabulary} * blocks_of(C, threads))), 1, chunks_most);
}

template <typename T, int width>
__global__ void embedding_kernel(T* y, const uint32_t* tokens, const float* w, uint32_t rows, uint32_t packs) {
    const uint32_t i = piece_thread(), row = i / packs, pack = i % packs;
    if (row >= rows) return;
    const Pack<float, width> from = floats<width>(w + (uint64_t{tokens[row]} * packs + pack) * width);
    Pack<T, width> made;
    for (int j = 0; j < width; ++j) store(&made.v[j], from.v[j]);
    as_packs<width>(y)[i] = made;
}

/// Grid: tokens, then chunks and tiles of channels.  to: [chunks, vocabulary, C]
template <typename T>
__global__ void __launch_bounds__(threads)
    gather_kernel(float* to, const T* dy, const uint32_t* tokens, uint32_t rows, uint32_t chunk_rows, uint32_t C, uint32_t tiles) {
    __shared__ uint32_t found[threads * sought / 32];   // a bit for each row of the part that is compared at once
    const uint32_t token = blockIdx.x, chunk = blockIdx.y / tiles, c = blockIdx.y % tiles * threads + threadIdx.x;
    const uint32_t begin = chunk * chunk_rows, end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
    float sum = 0;
    for (uint32_t first = begin; first < end; first += threads * sought) {
        __syncthreads();   // the bits before may still be read
        if (threadIdx.x < threads * sought / 32) found[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t u = 0; u < sought; ++u) {
            const uint32_t at = u * threads + threadIdx.x;
            if (first + at < end && tokens[first + at] == token) atomicAdd(&found[at / 32], 1u << at % 32);   // each bit once
        }
        __syncthreads();
        uint32_t waiting[batch], count = 0;
        const auto add = [&] {
            float got[batch];
            for (uint32_t k = 0; k < batch; ++k) got[k] = k < count && c < C ? load(dy[uint64_t{waiting[k]} * C + c]) : 0.0f;
            for (uint32_t k = 0; k < batch; ++k)
                if (k < count) sum += got[k];
            count = 0;
        };
        for (uint32_t word = 0; word < threads * sought / 32; ++word)
            for (uint32_t bits = found[word]; bits != 0; bits &= bits - 1) {
                waiting[count++] = first + word * 32 + static_cast<uint32_t>(__ffs(static_cast<int>(bits))) - 1;
                if (count == batch) add();
            }
        add();
    }
    if (c < C) to[(uint64_t{chunk} * gridDim.x + token) * C + c] = sum;
}

__global__ void add_chunks_kernel(float* dw, const float* parts, uint64_t count, uint32_t chunks) {
    const uint64_t i = thread_number();
    if (i >= count) return;
    float sum = 0;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) sum += parts[chunk * count + i];
    dw[i] = sum;
}

}   // namespace

Status embedding(cudaStream_t stream, Values y, const uint32_t* tokens, const float* w, uint64_t rows, uint32_t C) {
    return typed(y.bf16, C, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int wide = decltype(width)::value;
        return pieces(rows, C / wide, [&](uint64_t first, uint32_t count) {
            return GC_LAUNCH((embedding_kernel<T, wide>), blocks_of(uint64_t{count} * (C / wide), threads), threads, stream,
                             as<T>(y) + first * C, tokens + first, w, count, C / wide);
        });
    });
}

uint64_t embedding_scratch(uint32_t vocabulary, uint32_t C) {
    const uint32_t chunks = chunks_of(vocabulary, C);
    return chunks > 1 ? uint64_t{chunks} * vocabulary * C : 0;
}

Status embedding_backward(cudaStream_t stream, float* dw, Values dy, const uint32_t* tokens, float* scratch, uint64_t rows,
                          uint32_t vocabulary, uint32_t C) {
    const uint32_t chunks = chunks_of(vocabulary, C), tiles = blocks_of(C, threads);
    GC_ASSERT(rows <= INT32_MAX && uint64_t{chunks} * tiles <= 65535);
    const uint32_t chunk_rows = blocks_of(rows, chunks);
    GC_TRY(typed(dy.bf16, [&](auto type) {
        using T = decltype(type);
        return GC_LAUNCH(gather_kernel<T>, dim3(vocabulary, chunks * tiles, 1), threads, stream, chunks > 1 ? scratch : dw, as<T>(dy),
                         tokens, static_cast<uint32_t>(rows), chunk_rows, C, tiles);
    }));
    if (chunks == 1) return {};
    const uint64_t count = uint64_t{vocabulary} * C;
    return GC_LAUNCH(add_chunks_kernel, blocks_of(count, threads), threads, stream, dw, scratch, count, chunks);
}

Status embedding(Build& b) {
    const Layer& l = *b.layer;
    const uint64_t rows = b.rows(l.out);
    const uint32_t C = l.out.C, vocabulary = static_cast<uint32_t>(l.weights / C);
    GC_TRY(b.rows_fit(rows));
    if (C > 65535)
        return fail(Code::unsupported, "layer {}: its {} outputs are more than the 65535 that GPUs take: take device cpu", l.spec.name, C);
    const Tensor tokens = b.activation.value, w = b.weight(Place::parameters), dw = b.weight(Place::gradient);
    const Activation y = b.activation = b.flows(true);
    b.operations->forward.emplace_back(
        [=](const Frame& f) { return embedding(f.stream, f.values(y.value), f.at<uint32_t>(tokens), f.at(w), rows, C); });
    if (!b.training) return {};
    const Tensor space = b.beside(embedding_scratch(vocabulary, C) * sizeof(float));
    b.operations->weights.emplace_back([=](const Frame& f) {
        return embedding_backward(f.stream, f.at(dw), f.values(y.gradient), f.at<uint32_t>(tokens), f.at(space), rows, vocabulary, C);
    });
    return {};
}

// The gradient of the weights is that of a bias whose rows are whole samples.
Status positions(Build& b) {
    const Layer& l = *b.layer;
    const uint32_t samples = b.samples;
    const auto elements = static_cast<uint32_t>(l.in.elements());
    const Tensor w = b.weight(Place::parameters), dw = b.weight(Place::gradient);
    const Activation x = b.activation, y = b.activation = b.flows(true);
    b.operations->forward.emplace_back(
        [=](const Frame& f) { return add_rows(f.stream, f.values(y.value), f.values(x.value), f.at(w), samples, elements); });
    if (!b.training) return {};
    const SumPlaces sums = b.sum(Place::beside, columns_size(samples, elements, 1, b.bf16));
    b.operations->weights.emplace_back([=](const Frame& f) {
        return bias_backward(f.stream, f.values(y.gradient), Values{}, f.at(dw), f.at(sums), samples, elements, false);
    });
    if (x.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return copy(f.stream, f.values(x.gradient), f.values(y.gradient), uint64_t{samples} * elements); });
    return {};
}

}   // namespace gradcast::cuda
