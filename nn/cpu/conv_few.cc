// Convolution of few channels, on own kernels (nn/cpu/conv16.h).  A max pooling and a ReLU behind it are computed with it where they fit.
#include <cstring>

#include "nn/cpu/build.h"
#include "nn/cpu/conv16.h"
#include "nn/kernels.h"

namespace gradcast::cpu {
namespace {

/// Images of a last group of 8 samples or fewer are cut into 2 or 4 strips of rows, which take the places of samples that do not exist.
/// With 4 samples strip i of sample n is at place 4 i + n.
struct Strips {
    uint32_t count = 1;   // 1: images are not cut
    Conv16Shape shape;    // of one group of strips; neighbours share R - 1 rows of x
};
Strips strips_of(const Conv16Shape& image, uint32_t samples, uint32_t window) {
    const uint32_t count = samples == 0 || samples > 8 ? 1 : samples > 4 ? 2 : 4;
    const uint32_t rows = (image.P() / window + count - 1) / count * window;   // of y, before pooling
    Strips strips{rows < image.P() ? count : 1, image};
    if (strips.count > 1) {
        strips.shape.groups = 1;
        strips.shape.H = rows + image.R - 1;
    }
    return strips;
}

/// Planes of one group's images; rows of an image and of a strip; rows from a strip's beginning to the next one's.
struct Cut {
    uint32_t strips, planes, rows, strip_rows, step, pixels;
    uint64_t image_floats() const { return uint64_t{planes} * rows * pixels * 16; }
    uint64_t strip_floats() const { return strips > 1 ? uint64_t{planes} * strip_rows * pixels * 16 : 0; }
};
typedef float Four __attribute__((vector_size(4 * sizeof(float)), may_alias));

/// Calls f(row of a strip, the same row of the images or null beyond their end) for 4 samples at a time; pixels are 4 Fours apart.
template <typename F>
void each_row(const Cut& c, float* strips, float* images, F f) {
    const uint32_t places = 16 / c.strips;   // of a strip
    for (uint32_t plane = 0; plane < c.planes; ++plane)
        for (uint32_t strip = 0; strip < c.strips; ++strip)
            for (uint32_t row = 0; row < c.strip_rows; ++row) {
                const uint32_t of_image = strip * c.step + row;
                float* from = strips + (uint64_t{plane} * c.strip_rows + row) * c.pixels * 16 + strip * places;
                float* image = of_image < c.rows ? images + (uint64_t{plane} * c.rows + of_image) * c.pixels * 16 : nullptr;
                for (uint32_t place = 0; place < places; place += 4)
                    f(reinterpret_cast<Four*>(from + place), reinterpret_cast<Four*>(image ? image + place : nullptr));
            }
}

/// Rows beyond the images' end become 0.
void cut(const Cut& c, float* strips, float* images) {
    each_row(c, strips, images, [end = c.pixels * 4](Four* to, const Four* from) {
        for (uint32_t i = 0; i < end; i += 4) to[i] = from ? from[i] : Four{};
    });
}

/// Adds up overlapping rows; places of no sample become 0.
void join(const Cut& c, float* images, float* strips) {
    std::memset(images, 0, c.image_floats() * sizeof(float));
    each_row(c, strips, images, [end = c.pixels * 4](const Four* from, Four* to) {
        for (uint32_t i = 0; to && i < end; i += 4) to[i] += from[i];
    });
}

}   // namespace

bool conv_few_fits(const Layer& l) { return l.in.C < 16 && l.whole_windows() && l.window.stride == 1 && l.window.pad == 0 && l.biases > 0; }

bool conv_few_pools(const Layer& l, const Layer& pool) {
    return conv_few_fits(l) && pool.window.kernel == 2 && pool.window.stride == 2 && pool.window.pad == 0 && l.out.H % 2 == 0 &&
           l.out.W % 2 == 0;
}

Status conv_few(Build& b) {
    b.operations->unit = 16;   // which lie side by side
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const uint32_t window = b.pool ? 2 : 1;
    Conv16Shape whole{(b.samples + 15) / 16, l.in.C, l.in.H, l.in.W, l.out.C, l.window.kernel, l.window.kernel};
    const Conv16Kernels& kernels = conv16_kernels(b.level(false));
    const Strips strips = strips_of(whole, b.samples % 16, window);
    const Conv16Shape strip = strips.shape;
    whole.groups -= strips.count > 1;
    const uint32_t y_step = strip.P() / window;
    const Cut x_cut{strips.count, whole.C, whole.H, strip.H, strip.P(), whole.W};
    const Cut y_cut{strips.count, whole.K, whole.P() / window, y_step, y_step, whole.Q() / window};
    const uint64_t x_last = whole.groups * x_cut.image_floats(), y_last = whole.groups * y_cut.image_floats();   // of the group cut

    const Tensor w = b.weight(Place::parameters, Build::plain({l.weights})), bias = b.bias(Place::parameters);
    auto packed = [&](WeightOrder order) {
        return b.packed(order != WeightOrder::forward, kernels.packed(whole, order),
                        [&kernels, whole, w, order](float* to, Frame& frame) { kernels.pack(to, frame.at(w), whole, order); });
    };

    Tensor x1, x2;   // images, strips
    GC_TRY(b.consume({x.value}, Build::side_by_side(b.samples, l.in), list.forward, &x1));
    const Tensor w1 = packed(WeightOrder::forward), scratch1 = b.scratch(y_cut.strip_floats());
    const bool pools = b.pool;
    const Activation y = b.activation = b.flows(Build::side_by_side(b.samples, pools ? b.pool->out : l.out), true);
    const Tensor winners = pools ? b.kept(y.value.desc) : Tensor{};   // int32 for each float; those of strips in their order
    auto winners_at = [=](const Frame& frame, uint64_t first) {
        return pools ? reinterpret_cast<int32_t*>(frame.at(winners)) + first : nullptr;
    };
    auto of = [whole, most = b.samples](uint32_t samples) {
        Conv16Shape shape = whole;
        if (samples != most) shape.groups = samples / 16;   // of blocks computed together
        return shape;
    };
    auto forward = [=, &kernels](const Frame& frame, float* to, int32_t* won, const float* from, const Conv16Shape& shape) {
        if (pools) kernels.forward_pooled(to, won, from, frame.at(w1), frame.at(bias), shape);
        else kernels.forward(to, from, frame.at(w1), frame.at(bias), shape);
    };
    list.forward.emplace_back(
        [=](Frame& frame) { return forward(frame, frame.at(y.value), winners_at(frame, 0), frame.at(x1), of(frame.samples)), Status{}; });
    if (strips.count > 1) {
        x2 = b.kept(Build::plain({x_cut.strip_floats()}));
        list.forward.emplace_back([=](Frame& frame) {
            cut(x_cut, frame.at(x2), frame.at(x1) + x_last);
            forward(frame, frame.at(scratch1), winners_at(frame, y_last), frame.at(x2), strip);
            join(y_cut, frame.at(y.value) + y_last, frame.at(scratch1));
            return Status{};
        });
    }
    if (!b.training) return {};

    const uint64_t count = l.weights, biases = l.biases, sums = kernels.weights_scratch(whole);
    const Tensor dw = b.weight(Place::gradient, w.desc), db = b.bias(Place::gradient),
                 memory = b.scratch(sums + y_cut.strip_floats() + count + biases);
    const FloatKernels& plain = float_kernels(isa_best());
    auto weights = [=, &kernels](const Frame& frame, float* to, float* bias_to, const float* dy, uint64_t won, const float* from,
                                 const Conv16Shape& shape) {
        float* scratch = frame.at(memory);
        if (pools) kernels.backward_weights_pooled(to, bias_to, dy, winners_at(frame, won), from, scratch, shape);
        else kernels.backward_weights(to, bias_to, dy, from, scratch, shape);
    };
    if (pools)
        list.gradient.emplace_back([=, &plain](Frame& frame) {
            plain.relu_backward(frame.at(y.gradient), frame.at(y.value), (frame.samples + 15) / 16 * y_cut.image_floats());
            return Status{};
        });
    list.weights.emplace_back([=, &plain](Frame& frame) {
        const uint64_t group = frame.first / 16, place = group * y_cut.image_floats();
        float* dy = frame.at(y.gradient) + place;
        if (whole.groups > 0)
            weights(frame, frame.at(dw), frame.at(db), dy, place, frame.at(x1) + group * x_cut.image_floats(), of(frame.count));
        if (strips.count == 1) return Status{};
        const bool adds = whole.groups > 0;
        float *dy2 = frame.at(memory) + sums, *more = dy2 + y_cut.strip_floats();
        cut(y_cut, dy2, dy + y_last);
        weights(frame, adds ? more : frame.at(dw), adds ? more + count : frame.at(db), dy2, y_last, frame.at(x2), strip);
        if (adds) plain.add(frame.at(dw), frame.at(dw), more, count);
        if (adds) plain.add(frame.at(db), frame.at(db), more + count, biases);
        return Status{};
    });
    if (!x.learns) return {};

    const uint64_t edged = uint64_t{whole.K} * whole.P() * (whole.Q() + 2 * (whole.S - 1)) * 16;
    const Tensor w2 = packed(pools ? WeightOrder::data_pooled : WeightOrder::data),
                 rows = b.scratch(edged + y_cut.strip_floats() + x_cut.strip_floats());
    Tensor dx;
    std::vector<Operation> after;
    GC_TRY(b.produce(x.gradient, x1.desc, after, &dx, Place::beside));
    list.data.emplace_back([=, &kernels](Frame& frame) {
        float *dy = frame.at(y.gradient), *scratch = frame.at(rows), *dy2 = scratch + edged, *dx2 = dy2 + y_cut.strip_floats();
        kernels.backward_data(frame.at(dx), dy, winners_at(frame, 0), frame.at(w2), scratch, of(frame.samples));
        if (strips.count == 1) return Status{};
        cut(y_cut, dy2, dy + y_last);
        kernels.backward_data(dx2, dy2, winners_at(frame, y_last), frame.at(w2), scratch, strip);
        join(x_cut, frame.at(dx) + x_last, dx2);
        return Status{};
    });
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
