#include "datasets/resident.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <vector>

namespace gradcast {
namespace {

constexpr uint64_t fill_bytes = 16 << 20;   // bytes that are read and copied at a time

class ResidentLoader final : public Loader {
public:
    ResidentLoader(const DataSet& data, const Sampler& sampler, uint32_t ahead, ResidentImages* resident)
        : data_(data), sampler_(sampler), resident_(resident), slots_(ahead) {
        for (Slot& slot : slots_) {
            slot.indices.resize(sampler.block_size_max());
            slot.labels.resize(sampler.block_size_max());
            slot.places.resize(sampler.block_size_max());
        }
    }

    void plan(StepId, std::vector<uint32_t>) override {
        std::lock_guard lock(mutex_);
        for (Slot& slot : slots_) slot.taken = false;
    }

    Status get(BlockId id, uint64_t, Samples* samples) override {
        Slot* slot = nullptr;
        {
            std::lock_guard lock(mutex_);
            auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& each) { return !each.taken; });
            GC_ASSERT(free != slots_.end());
            slot = &*free;
            slot->taken = true;
            slot->id = id;
        }
        const uint32_t count = sampler_.block_size(id.block);
        const std::span<uint64_t> indices(slot->indices.data(), count);
        sampler_.block(id, indices);
        data_.labels(indices, slot->labels.data());
        for (uint32_t i = 0; i < count; ++i) slot->places[i] = {indices[i], static_cast<uint32_t>(sampler_.epoch_of(id, i))};
        const DataInfo& info = data_.info();
        *samples = {nullptr,         slot->labels.data(), count,    info.C, info.H, info.W, info.mean.data(),
                    info.std.data(), slot->places.data(), resident_};
        return {};
    }

    void done(BlockId id) override {
        std::lock_guard lock(mutex_);
        for (Slot& slot : slots_)
            if (slot.taken && slot.id.step == id.step && slot.id.block == id.block) slot.taken = false;
    }

    uint64_t waited_us() const override { return 0; }
    const char* name() const override { return resident_ ? "device" : "program"; }

private:
    struct Slot {
        bool taken = false;
        BlockId id{};
        std::vector<uint64_t> indices;
        std::vector<int32_t> labels;
        std::vector<SamplePlace> places;
    };
    const DataSet& data_;
    const Sampler sampler_;
    ResidentImages* const resident_;
    std::mutex mutex_;
    std::vector<Slot> slots_;
};

}   // namespace

Status resident_fill(const DataSet& data, ResidentImages& resident) {
    const uint64_t most = std::max<uint64_t>(1, fill_bytes / data.sample_bytes());
    std::vector<uint64_t> indices(most);
    std::vector<uint8_t> images(most * data.sample_bytes());
    std::vector<int32_t> labels(most);
    for (uint64_t first = 0; first < data.info().count; first += most) {
        const uint64_t count = std::min(most, data.info().count - first);
        std::iota(indices.begin(), indices.end(), first);
        GC_TRY(data.read({indices.data(), count}, images.data(), labels.data()));
        GC_TRY(resident.put(first, images.data(), count));
    }
    return {};
}

std::unique_ptr<Loader> loader_resident(const DataSet& data, const Sampler& sampler, uint32_t ahead, ResidentImages* resident) {
    return std::make_unique<ResidentLoader>(data, sampler, ahead, resident);
}

}   // namespace gradcast
