#include "nn/cpu/build.h"

#include <dnnl_debug.h>

#include <algorithm>
#include <cstring>

#include "nn/cpu/conv16.h"

namespace gradcast::cpu {

Status Call::bind(std::span<const Frame> frames, dnnl_engine_t engine) {
    for (const Frame& frame : frames)
        for (const auto& [index, tensor] : tensors) {
            dnnl_memory_t memory = nullptr;
            dnnl_status_t status = dnnl_memory_create(&memory, &tensor.desc, engine, frame.at(tensor));
            if (status != dnnl_success) return fail(Code::node_memory, "oneDNN cannot take a tensor's memory: {}", dnnl_status2str(status));
            memories.emplace_back(memory);
            arguments.push_back({index, memory});
        }
    return {};
}

Status Call::run(const Frame& frame) const {
    size_t count = tensors.size();
    dnnl_status_t status =
        dnnl_primitive_execute(primitive.get(), frame.stream, static_cast<int>(count), arguments.data() + frame.number * count);
    if (status != dnnl_success) return fail(Code::node_memory, "oneDNN cannot run a kernel: {}", dnnl_status2str(status));
    return {};
}

void Build::begin(uint32_t size, bool backward, std::vector<Operations>* all, std::vector<EdgeTensors>* edges,
                  std::vector<SliceBytes>* slices) {
    samples = size;
    training = backward;
    activation = other = {};
    memory.begin(!training);
    elsewhere.begin(!training);
    all->resize(layers.size());
    all_ = all;
    edges_ = edges;
    slice_bytes_ = slices;
    inside_ = stage.has(0);   // of the net's input
}

bool Build::enter(uint32_t next) {
    inside_ = stage.has(next);
    if (merged_[next]) return false;
    pool = next + 1 < layers.size() && merged_[next + 1] ? &layers[next + 1] : nullptr;
    layer = &layers[next];
    number = next;
    operations = &(*all_)[next];
    copies = &weight_copies[next];
    return true;
}

bool Build::part(uint32_t from, uint32_t by, Activation* given) {
    const bool ours = stage.has(by), crosses = ours != stage.has(from), comes = ours && crosses;
    inside_ = ours || stage.has(from);
    given->shared = alone(from, by) || (comes && shares());   // a forward pass that is computed again reads it again
    const auto before = std::ranges::find_if(*edges_, [&](const EdgeTensors& each) { return each.edge.from == from; });
    Tensor sent = given->value;
    if (crosses && before != edges_->end()) sent = before->sent;
    else if (comes) sent = received(sent.desc);
    else if (crosses && shares()) sent = kept_by_slot(sent.desc);
    if (comes) given->value = sent;
    if (given->learns) given->gradient = comes ? kept_by_slot(given->gradient.desc) : kept(given->gradient.desc);
    if (crosses) edges_->push_back({{from, by, ours, given->learns}, given->value, given->gradient, sent});
    inside_ = ours;
    return given->learns;
}

void Build::add_up(uint32_t which, const Activation& output, std::vector<Tensor> parts) {
    auto sum = [&kernels = float_kernels(isa_best()), to = output.gradient, from = std::move(parts)](Frame& frame) {
        const uint64_t count = to.bytes() / sizeof(float);
        if (from.size() == 1) std::memcpy(frame.at(to), frame.at(from[0]), to.bytes());
        else kernels.add(frame.at(to), frame.at(from[0]), frame.at(from[1]), count);
        for (size_t part = 2; part < from.size(); ++part) kernels.add(frame.at(to), frame.at(to), frame.at(from[part]), count);
        return Status{};
    };
    std::vector<Operation>& list = (*all_)[which].gradient;
    list.insert(list.begin(), sum);
}

dnnl_memory_desc_t Build::plain(std::initializer_list<uint64_t> sizes, dnnl_data_type_t type) {
    dnnl_dims_t dims{}, strides{};
    int count = 0;
    for (uint64_t size : sizes) dims[count++] = static_cast<dnnl_dim_t>(size);
    dnnl_dim_t stride = 1;
    for (int i = count - 1; i >= 0; --i) {
        strides[i] = stride;
        stride *= dims[i];
    }
    dnnl_memory_desc_t desc;
    GC_ASSERT(dnnl_memory_desc_init_by_strides(&desc, count, dims, type, strides) == dnnl_success);
    return desc;
}

dnnl_memory_desc_t Build::any(const dnnl_memory_desc_t& like, dnnl_data_type_t type) {
    dnnl_memory_desc_t desc;
    GC_ASSERT(dnnl_memory_desc_init_by_tag(&desc, like.ndims, like.dims, type, dnnl_format_tag_any) == dnnl_success);
    return desc;
}

static auto taker_of(std::span<const Layer> layers, uint32_t at) {
    return std::find_if(layers.begin(), layers.end(), [at](const Layer& l) { return l.input == at || l.other == at; });
}

size_t Build::slice_point(SliceTraffic what, uint32_t with, SliceBytes bytes) {
    if (!stage.has(number)) return 0;   // its operations are dropped
    const SlicePoint point{number, what, with};
    const auto at = static_cast<size_t>(std::ranges::find(slice_points, point) - slice_points.begin());
    if (at == slice_points.size()) slice_points.push_back(point);
    slice_bytes_->resize(std::max(slice_bytes_->size(), at + 1));
    (*slice_bytes_)[at] = std::move(bytes);
    return at;
}

void Build::own_slice(bool own) {
    const bool before = std::exchange(inside_, own && stage.has(number));
    if (inside_ != before) reordered.clear();   // no slice reads what is not there
}

bool Build::columns_apart(uint32_t of) const {
    if (stage.slice_groups == 1 || layers[of].slices.empty() || layers[of].kind->selects || layers[of].takers != 1) return false;
    const auto taker = taker_of(layers, of);
    return taker->is(softmax_cross_entropy_kind) && stage.has(of) && stage.has(static_cast<uint32_t>(taker - layers.begin()));
}

dnnl_data_type_t Build::output_type() const {
    for (uint32_t at = number; type == dnnl_bf16 && layers[at].takers == 1;) {
        auto taker = taker_of(layers, at);
        if (taker->is(conv_kind) && !conv_few_fits(*taker) && !conv_wide_fits(*this, *taker)) return dnnl_bf16;
        if (!taker->is(relu_kind)) break;
        at = static_cast<uint32_t>(taker - layers.begin());
    }
    return dnnl_f32;
}

dnnl_memory_desc_t Build::tagged(const Shape& shape, dnnl_format_tag_t tag, dnnl_data_type_t of) const {
    dnnl_dims_t dims = {samples, shape.C, shape.H, shape.W};
    dnnl_memory_desc_t desc;
    GC_ASSERT(dnnl_memory_desc_init_by_tag(&desc, 4, dims, of, tag) == dnnl_success);
    return desc;
}

uint32_t Build::input_width() const {
    dnnl_memory_desc_t eight = blocked(layer->in, 8);
    return dnnl_memory_desc_equal(&activation.value.desc, &eight) ? 8 : 16;
}

// Scratch memory is the caller's: it comes from the arena, and lanes do not share it.
Build::Attributes Build::attributes() {
    dnnl_primitive_attr_t made = nullptr;
    GC_ASSERT(dnnl_primitive_attr_create(&made) == dnnl_success &&
              dnnl_primitive_attr_set_scratchpad_mode(made, dnnl_scratchpad_mode_user) == dnnl_success);
    return Attributes(made);
}

dnnl_memory_desc_t Build::side_by_side(uint32_t samples, const Shape& shape) {
    dnnl_dims_t dims = {samples, shape.C, shape.H, shape.W};
    dnnl_memory_desc_t desc;
    GC_ASSERT(dnnl_memory_desc_init_by_tag(&desc, 4, dims, dnnl_f32, dnnl_Abcd16a) == dnnl_success);
    return desc;
}

Status Build::describe(const char* what, const void* op, const_dnnl_primitive_desc_t hint, Pd* pd) {
    if (nn_isa() == Isa::common)
        return fail(
            Code::unsupported,
            "layer {}: isa = \"common\" has no kernel for its {} pass, because oneDNN computes it and its bits depend on the CPU: take "
            "another isa, the same at all nodes",
            layer->spec.name, what);
    dnnl_primitive_desc_t made = nullptr;
    dnnl_status_t status = dnnl_primitive_desc_create(&made, op, attributes().get(), engine_, hint);
    if (status != dnnl_success)
        return fail(Code::unsupported, "layer {}: oneDNN has no kernel for its {} pass with {} samples ({})", layer->spec.name, what,
                    samples, dnnl_status2str(status));
    pd->reset(made);
    return {};
}

Status Build::primitive(const Pd& pd, std::vector<std::pair<int, Tensor>> tensors, std::vector<Operation>& list) {
    // Nobody runs what is of other stages, or of slices of other groups: its kernels are not made, which would take most of a plan's time.
    if (!inside_) return list.emplace_back([](Frame&) { return Status{}; }), Status{};
    auto call = std::make_unique<Call>();
    dnnl_primitive_t made = nullptr;
    dnnl_status_t status = dnnl_primitive_create(&made, pd.get());
    if (status != dnnl_success)
        return fail(Code::node_memory, "layer {}: oneDNN cannot make a kernel ({})", layer->spec.name, dnnl_status2str(status));
    call->primitive.reset(made);
    call->tensors = std::move(tensors);
    dnnl_memory_desc_t scratch = query(pd, dnnl_query_scratchpad_md);
    if (dnnl_memory_desc_get_size(&scratch)) call->tensors.emplace_back(DNNL_ARG_SCRATCHPAD, reserve(Place::scratch, scratch));
    list.emplace_back([raw = call.get()](Frame& frame) { return raw->run(frame); });
    calls.push_back(std::move(call));
    return {};
}

Status Build::reorder(const Tensor& from, const Tensor& to, std::vector<Operation>& list) {
    if (dnnl_memory_desc_equal(&from.desc, &to.desc)) {
        list.emplace_back([from, to](Frame& frame) { return std::memcpy(frame.at(to), frame.at(from), to.bytes()), Status{}; });
        return {};
    }
    if (from.desc.ndims == 4 && std::max(from.place, to.place) <= Place::odd) {   // activations of a frame's samples
        const dnnl_dim_t* const dims = from.desc.dims;
        const Shape shape{static_cast<uint32_t>(dims[1]), static_cast<uint32_t>(dims[2]), static_cast<uint32_t>(dims[3])};
        const dnnl_memory_desc_t flat = plain({samples, shape.C, shape.H, shape.W}), beside = side_by_side(samples, shape);
        auto turns = [&](const dnnl_memory_desc_t& first, const dnnl_memory_desc_t& second) {
            return dnnl_memory_desc_equal(&from.desc, &first) && dnnl_memory_desc_equal(&to.desc, &second);
        };
        if (const bool apart = turns(beside, flat); apart || turns(flat, beside)) {
            const Conv16Kernels& kernels = conv16_kernels(isa_best());
            list.emplace_back([turn = apart ? kernels.apart : kernels.beside, from, to, elements = shape.elements()](Frame& frame) {
                turn(frame.at(to), frame.at(from), elements, frame.samples);
                return Status{};
            });
            return {};
        }
    }
    dnnl_primitive_desc_t made = nullptr;
    dnnl_reorder_primitive_desc_create(&made, &from.desc, engine_, &to.desc, engine_, attributes().get());
    if (!made) return fail(Code::unsupported, "layer {}: oneDNN cannot reorder one of its tensors", layer->spec.name);
    return primitive(Pd(made), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}, list);
}

Activation Build::flows(const dnnl_memory_desc_t& desc, bool learns) {
    Activation made{.value = kept(desc), .gradient = {}, .learns = learns && training};
    if (made.learns) made.gradient = passes_apart || in_slice ? kept(desc) : reserve(plan().turn(), desc);
    return made;
}

Status Build::in_place(const dnnl_memory_desc_t& desc, std::vector<Operation>& after, Activation* made) {
    const Activation x = activation;
    *made = x;
    if (!x.shared && dnnl_memory_desc_equal(&x.value.desc, &desc)) return {};
    *made = flows(desc, x.learns);
    GC_TRY(reorder(x.value, made->value, operations->forward));
    return made->learns ? reorder(made->gradient, x.gradient, after) : Status{};
}

Tensor Build::canonical(Place place, const dnnl_memory_desc_t& desc, uint64_t element) const {
    uint64_t at = layout.offset_of(element);
    if (at == Layout::none) return {desc, place};   // another stage's: nobody reads it
    if (place == Place::gradient) at -= layout.buckets[layout.bucket_of(at)].offset;
    return {desc, place, at * sizeof(float)};
}

Status Build::weights_as(const dnnl_memory_desc_t& canonical, const dnnl_memory_desc_t& desc, Tensor* tensor) {
    Tensor parameters = weight(Place::parameters, canonical);
    if (dnnl_memory_desc_equal(&canonical, &desc)) {
        *tensor = parameters;
        return {};
    }
    for (const Tensor& copy : copies->tensors)
        if (dnnl_memory_desc_equal(&copy.desc, &desc)) {
            *tensor = copy;
            return {};
        }
    const Tensor copy = append(Place::copies, desc);
    GC_TRY(reorder(parameters, copy, copies->refresh));
    copies->tensors.push_back(copy);
    *tensor = copy;
    return {};
}

Tensor Build::packed(bool backward, uint64_t floats, std::function<void(float*, Frame&)> pack) {
    std::optional<Tensor>& copy = copies->packed[backward];
    if (!copy) {
        copy = append(Place::copies, plain({floats}));
        copies->refresh.emplace_back([to = *copy, pack](Frame& frame) { return pack(frame.at(to), frame), Status{}; });
    }
    return *copy;
}

Status Build::consume(std::initializer_list<Tensor> have, const dnnl_memory_desc_t& desc, std::vector<Operation>& list, Tensor* tensor) {
    for (const Tensor& each : have)
        if (dnnl_memory_desc_equal(&each.desc, &desc)) {
            *tensor = each;
            return {};
        }
    const Tensor& from = *have.begin();
    const auto known = std::ranges::find_if(reordered, [&](const Reordered& each) {
        return each.list == &list && each.from.place == from.place && each.from.offset == from.offset &&
               dnnl_memory_desc_equal(&each.to.desc, &desc);
    });
    if (known != reordered.end()) return *tensor = known->to, Status{};
    *tensor = kept(desc);
    if (in_slice) reordered.push_back({&list, from, *tensor});
    return reorder(from, *tensor, list);
}

Status Build::produce(const Tensor& wanted, const dnnl_memory_desc_t& desc, std::vector<Operation>& after, Tensor* tensor, Place place) {
    if (dnnl_memory_desc_equal(&wanted.desc, &desc)) {
        *tensor = wanted;
        return {};
    }
    *tensor = place == Place::beside ? reserve(place, desc) : append(place, desc);
    return reorder(*tensor, wanted, after);
}

}   // namespace gradcast::cpu
