// A net as a job file, a model file or a preset writes it down.  layers_check() makes layers of it.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/element.h"

namespace gradcast {

/// The values of a layer's keys that were given, by name.  Flags are 0 and 1.
class LayerValues {
public:
    LayerValues() = default;
    LayerValues(std::initializer_list<std::pair<const char*, double>> values) {
        for (const auto& [key, value] : values) set(key, value);
    }
    void set(std::string_view key, double value) {
        for (auto& [known, to] : all_)
            if (known == key) return (void)(to = value);
        all_.emplace_back(key, value);
    }
    /// Null: it was not given.
    const double* find(std::string_view key) const {
        for (const auto& [known, value] : all_)
            if (known == key) return &value;
        return nullptr;
    }
    auto begin() const { return all_.begin(); }
    auto end() const { return all_.end(); }
    bool operator==(const LayerValues&) const = default;

private:
    std::vector<std::pair<std::string, double>> all_;
};

struct LayerSpec {
    std::string kind = {};         // LayerKind::name
    std::string name = {};         // for errors, exports and `from`; empty: kind and number ("conv2")
    LayerValues values = {};       // of the keys of its kind
    std::string from = {};         // an earlier layer: a kind with two inputs takes it as its second one, any other as its input
    std::string weights_of = {};   // an earlier layer, whose weights it takes in place of its own (LayerKind::ties)
};
/// Layers first .. end - 1 of a net, and of those that are sliced the slices of one slice group; the default is all of the net.  The number
/// of slice groups divides the slices of each layer.
struct Stage {
    uint32_t first = 0, end = ~0u;
    uint32_t slice_group = 0, slice_groups = 1;
    bool has(uint32_t layer) const { return layer >= first && layer < end; }
    /// Return the first slice, and the number of slices, that the stage has of a layer with so many slices.
    uint32_t slices_begin(uint32_t slices) const { return slices / slice_groups * slice_group; }
    uint32_t slices_count(uint32_t slices) const { return slices / slice_groups; }
    bool has_slice(uint32_t t, uint32_t slices) const { return t / slices_count(slices) == slice_group; }
    bool operator==(const Stage&) const = default;
};
struct NetSpec {
    uint32_t C = 1, H = 28, W = 28;   // of a sample as stored
    uint32_t pad = 0;                 // zeros added on each side before the first layer (28 -> 32 is 2)
    uint32_t classes = 10;
    float target_scale = 0;   // above 0: a regression; a sample's target is (label - classes / 2) * it, and the net has one output
    uint32_t targets = 0;     // above 0: a sample has so many targets in place of a label
    Element target_element = Element::f32;   // f32: a regression, and the net has as many outputs
    Element element = Element::u8;           // of a sample
    uint32_t vocabulary = 0;   // above 0: a text, whose sample is W tokens below it; the label of each but the last is the next one
    int32_t ignore = -1;       // of targets that are labels: the one that says nothing; -1: none
    uint64_t sample_bytes() const { return uint64_t{C} * H * W * element_bytes(element); }
    uint64_t targets_bytes() const { return uint64_t{targets} * element_bytes(target_element); }   // of a sample
    bool regression() const { return target_scale > 0 || (targets > 0 && target_element == Element::f32); }
    /// A sample has a label for each position: the targets are labels, or it is a text.
    bool by_position() const { return vocabulary > 0 || (targets > 0 && target_element != Element::f32); }
    /// Labels of a sample.
    uint32_t positions() const { return vocabulary > 0 ? W - 1 : by_position() ? targets : 1; }
    /// Values that a label may have.
    uint32_t label_classes() const { return vocabulary > 0 ? vocabulary : classes; }
    std::vector<LayerSpec> layers = {};
};
/// Its samples are not images of bytes with labels.
inline bool typed(const NetSpec& spec) { return spec.element != Element::u8 || spec.targets > 0 || spec.vocabulary > 0; }

}   // namespace gradcast
