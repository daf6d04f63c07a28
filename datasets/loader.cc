// The plan is an endless sequence of blocks: all planned blocks of a step, then those of the next.  Block k of the sequence is read into
// slot k mod `ahead`, whose states are
//
//     free -> filling (one thread: io_uring or pread) -> ready -> taken (get) -> free (done)
//
// Memory is fixed and blocks become ready in order.  A new plan restarts the sequence; a slot in state filling becomes `stale` then, and
// free when its last read has ended.  Without a thread get() reads into any free slot itself.
#include <liburing.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "datasets/reader.h"
#include "runtime/core/clock.h"
#include "runtime/core/thread.h"

namespace gradcast {
namespace {

constexpr uint32_t reads_max = 1024;   // in flight
constexpr uint32_t drain_s_max = 5;    // the destructor's wait for reads in flight
constexpr uint32_t no_place = UINT32_MAX;

class BlockLoader final : public Loader {
public:
    BlockLoader(const DataSet& data, const Sampler& sampler, const LoaderConfig& config, Arena& arena, const Log& log)
        : data_(data), sampler_(sampler), config_(config), log_(log), block_max_(sampler.block_size_max()), slots_(config.ahead) {
        GC_ASSERT(config.ahead > 0);
        image_stride_ = (block_max_ * data.sample_bytes() + 63) / 64 * 64;
        arena.plan("read-ahead", config.ahead * image_stride_, &images_);
        arena.plan("read-ahead", config.ahead * block_max_ * sizeof(int32_t), &labels_);
        target_stride_ = (block_max_ * data.info().targets_bytes() + 63) / 64 * 64;
        arena.plan("read-ahead", config.ahead * target_stride_, &targets_);
        indices_.resize(uint64_t{config.ahead} * block_max_);
        epochs_.resize(indices_.size());
    }

    ~BlockLoader() override {
        {
            std::lock_guard lock(mutex_);
            stop_ = true;
        }
        room_.notify_all();
        if (thread_.joinable()) thread_.join();
        if (ring_open_) io_uring_queue_exit(&ring_);
    }

    Status start() {
        GC_ASSERT(images_.host && !thread_.joinable());
        if (!config_.threaded) return {};
        if (config_.uring && !data_.chunked()) ring_start();   // chunks are inflated on this thread, with pread
        return thread_.start([this] {
            pthread_setname_np(pthread_self(), "gradcast-loader");
            ring_open_ ? fill_by_ring() : fill_by_pread();
        });
    }

    void plan(StepId first, std::vector<uint32_t> blocks) override {
        GC_ASSERT(!blocks.empty());
        std::lock_guard lock(mutex_);
        first_ = first;
        blocks_ = std::move(blocks);
        next_ = 0;
        place_.assign(*std::max_element(blocks_.begin(), blocks_.end()) + 1, no_place);
        for (uint32_t i = 0; i < blocks_.size(); ++i) place_[blocks_[i]] = i;
        for (Slot& slot : slots_) {
            if (slot.state == State::filling) slot.stale = true;
            else slot.state = State::free;
        }
        room_.notify_all();
    }

    Status get(BlockId id, uint64_t deadline_us, Samples* samples) override {
        std::unique_lock lock(mutex_);
        uint64_t sequence = sequence_of(id);
        Slot* slot = nullptr;
        auto there = [&] {
            if (!broken_.ok()) return true;
            if (!config_.threaded) {
                auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& each) { return each.state == State::free; });
                slot = free == slots_.end() ? nullptr : &*free;
                return slot != nullptr;
            }
            slot = &slots_[sequence % slots_.size()];
            return slot->state == State::ready && !slot->stale && slot->sequence == sequence;
        };
        if (!there()) {
            uint64_t began = clock_us();
            bool came = ready_.wait_for(lock, std::chrono::microseconds(deadline_us), there);
            waited_us_.fetch_add(clock_us() - began, std::memory_order_relaxed);
            if (!came)
                return fail(Code::deadline,
                            "block {} of step {} was not read from {} within {} ms: the disk is too slow or does not answer", id.block,
                            id.step + 1, data_.pattern(), deadline_us / 1000);
        }
        GC_TRY(broken_);
        if (config_.threaded) {
            GC_TRY(slot->status);
            slot->state = State::taken;
        } else {
            slot->state = State::taken;
            slot->sequence = sequence;
            slot->id = id;
            lock.unlock();
            choose(*slot);
            if (Status status = read(*slot); !status.ok()) {
                done(id);
                return status;
            }
            change(*slot);
        }
        *samples = data_.samples(slot->count, image(*slot), label(*slot), target(*slot));
        return {};
    }

    void done(BlockId id) override {
        std::lock_guard lock(mutex_);
        uint64_t sequence = sequence_of(id);
        for (Slot& slot : slots_)
            if (slot.state == State::taken && slot.sequence == sequence) slot.state = State::free;
        config_.threaded ? room_.notify_one() : ready_.notify_all();
    }

    uint64_t waited_us() const override { return waited_us_.load(std::memory_order_relaxed); }
    const char* name() const override { return ring_open_ ? "io_uring" : "pread"; }

private:
    enum class State : uint8_t { free, filling, ready, taken };
    struct Slot {
        State state = State::free;
        bool stale = false;
        uint32_t count = 0;      // samples
        uint32_t prepared = 0;   // filling: samples with prepared reads
        uint32_t reads = 0;      // filling: reads in flight
        uint64_t sequence = 0;
        BlockId id{};
        Status status;
    };
    struct Read {
        Slot* slot;
        Run run;
        uint8_t* to;
        uint64_t have;   // bytes read so far
        Read* next;      // free list
    };

    uint64_t sequence_of(BlockId id) const {
        GC_ASSERT(id.step >= first_ && id.block < place_.size() && place_[id.block] != no_place);
        return (id.step - first_) * blocks_.size() + place_[id.block];
    }
    uint64_t index(const Slot& slot) const { return static_cast<uint64_t>(&slot - slots_.data()); }
    uint8_t* image(const Slot& slot) const { return images_.as<uint8_t>() + index(slot) * image_stride_; }
    int32_t* label(const Slot& slot) const { return labels_.as<int32_t>() + index(slot) * block_max_; }
    std::byte* target(const Slot& slot) const { return targets_.as<std::byte>() + index(slot) * target_stride_; }
    std::span<uint64_t> indices(const Slot& slot) { return std::span(indices_).subspan(index(slot) * block_max_, slot.count); }
    void choose(Slot& slot) {
        slot.count = sampler_.block_size(slot.id.block);
        const std::span<uint64_t> own = indices(slot);
        sampler_.block(slot.id, own);
        uint64_t* epochs = &epochs_[index(slot) * block_max_];
        for (uint32_t i = 0; i < slot.count; ++i) {
            epochs[i] = sampler_.epoch_of(slot.id, i);
            own[i] = data_.in_epoch(own[i], sampler_.seed(), epochs[i]);
        }
    }
    Status read(Slot& slot) {
        return data_.read(indices(slot), image(slot), label(slot), target(slot), {&config_.augment, &epochs_[index(slot) * block_max_]});
    }

    /// Augments the slot's images, once they are read.
    void change(Slot& slot) {
        if (!config_.augment.any()) return;
        for (uint32_t i = 0; i < slot.count; ++i)
            augment(config_.augment, data_.info(), epochs_[index(slot) * block_max_ + i], indices(slot)[i],
                    image(slot) + i * data_.sample_bytes(), target(slot) + i * data_.info().targets_bytes());
    }

    // ---- the thread --------------------------------------------------------------------------------------------------------------

    /// The slot for the next block of the plan; null if it is not free or the loader stops.  wait: blocks until it is free.
    Slot* take(bool wait) {
        std::unique_lock lock(mutex_);
        auto can = [&] { return stop_ || (!blocks_.empty() && slots_[next_ % slots_.size()].state == State::free); };
        if (wait) room_.wait(lock, can);   // woken by plan(), done() and the destructor
        if (stop_ || !can()) return nullptr;
        Slot& slot = slots_[next_ % slots_.size()];
        BlockId id{first_ + next_ / blocks_.size(), blocks_[next_ % blocks_.size()]};
        slot = {.state = State::filling, .sequence = next_++, .id = id, .status = {}};
        lock.unlock();
        choose(slot);
        return &slot;
    }

    void finish(Slot& slot) {
        if (slot.status.ok()) change(slot);
        std::lock_guard lock(mutex_);
        slot.state = slot.stale ? State::free : State::ready;
        ready_.notify_all();
    }

    void fill_by_pread() {
        while (Slot* slot = take(true)) {
            slot->status = read(*slot);
            finish(*slot);
        }
    }

    void ring_start() {
        io_uring_params params{};
        params.flags = IORING_SETUP_SUBMIT_ALL;   // submit the rest after a bad entry
        if (int error = io_uring_queue_init_params(reads_max, &ring_, &params); error < 0) {
            log_.warn("io_uring is refused here ({}): the data set is read with pread", std::strerror(-error));
            return;
        }
        ring_open_ = true;
        iovec memory{images_.host, images_.bytes};
        int error = config_.registered ? io_uring_register_buffers(&ring_, &memory, 1) : -ENOMEM;
        registered_ = error == 0;
        if (!registered_)
            log_.warn("read-ahead memory of {:.1f} MiB is not registered with io_uring ({}): raise RLIMIT_MEMLOCK to save some time a read",
                      static_cast<double>(images_.bytes) / 0x1p20, std::strerror(-error));
        reads_.resize(reads_max);
        for (Read& read : reads_) read.next = std::exchange(free_read_, &read);
    }

    void fill_by_ring() {
        Slot* slot = nullptr;   // its reads are being prepared
        for (uint32_t quiet_s = 0;;) {
            while (free_read_) {
                if (!slot && !(slot = take(in_flight_ == 0))) break;
                if (slot->prepared == 0) {
                    data_.labels(indices(*slot), label(*slot));
                    slot->status = data_.targets(indices(*slot), target(*slot));
                }
                Read& read = *std::exchange(free_read_, free_read_->next);
                Run run = data_.run(indices(*slot).subspan(slot->prepared));
                read = {slot, run, image(*slot) + slot->prepared * data_.sample_bytes(), 0, nullptr};
                ++in_flight_;
                ++slot->reads;
                slot->prepared += run.count;
                prepare(read);
                if (slot->prepared == slot->count) slot = nullptr;
            }
            if (in_flight_ == 0) return;   // stop
            // Reads from the page cache complete within this call; else it waits for the first completion.
            __kernel_timespec second{1, 0};
            io_uring_cqe* cqe;
            int result = io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &second, nullptr);
            if (result == -ETIME && stopping() && ++quiet_s == drain_s_max) return;
            if (result == -EAGAIN || result == -EBUSY) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            else if (result < 0 && result != -ETIME && result != -EINTR)
                return give_up(fail_sys(-result, "cannot read {} through io_uring", data_.pattern()));
            uint32_t head, count = 0;
            io_uring_for_each_cqe(&ring_, head, cqe) {
                ++count;
                complete(*static_cast<Read*>(io_uring_cqe_get_data(cqe)), cqe->res);
            }
            io_uring_cq_advance(&ring_, count);
        }
    }

    void prepare(Read& read) {
        io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
        GC_ASSERT(sqe);   // the ring has an entry for each Read
        int fd = data_.fd(read.run.shard);
        auto bytes = static_cast<unsigned>(read.run.bytes - read.have);
        if (registered_) io_uring_prep_read_fixed(sqe, fd, read.to + read.have, bytes, read.run.offset + read.have, 0);
        else io_uring_prep_read(sqe, fd, read.to + read.have, bytes, read.run.offset + read.have);
        io_uring_sqe_set_data(sqe, &read);
    }

    void complete(Read& read, int result) {
        if (result > 0) read.have += static_cast<uint64_t>(result);
        if (result == -EINTR || result == -EAGAIN || (result > 0 && read.have < read.run.bytes)) return prepare(read);   // read the rest
        Slot& slot = *read.slot;
        const Shard& shard = data_.shards()[read.run.shard];
        if (result <= 0 && slot.status.ok())
            slot.status = shard_read_error(shard, shard.samples_name, read.run.sample + read.have / data_.sample_bytes(), -result);
        read.next = std::exchange(free_read_, &read);
        --in_flight_;
        --slot.reads;
        if (slot.reads == 0 && slot.prepared == slot.count) finish(slot);
    }

    bool stopping() {
        std::lock_guard lock(mutex_);
        return stop_;
    }
    void give_up(Status status) {
        std::lock_guard lock(mutex_);
        broken_ = status;
        ready_.notify_all();
    }

    const DataSet& data_;
    const Sampler sampler_;
    const LoaderConfig config_;
    const Log log_;
    const uint64_t block_max_;
    uint64_t image_stride_ = 0, target_stride_ = 0;
    Buffer images_, labels_, targets_;   // `ahead` blocks each
    std::vector<uint64_t> indices_;      // for `ahead` blocks
    std::vector<uint64_t> epochs_;       // of these samples

    std::mutex mutex_;   // guards the members below, down to thread_
    std::condition_variable ready_, room_;
    StepId first_ = 0;
    std::vector<uint32_t> blocks_, place_;   // the plan, and by block its place in the plan
    uint64_t next_ = 0;                      // next place of the sequence to read
    std::vector<Slot> slots_;                // in state filling owned by the thread, except `stale`
    bool stop_ = false;
    Status broken_;
    std::atomic<uint64_t> waited_us_ = 0;

    Thread thread_;   // owns the members below
    io_uring ring_{};
    bool ring_open_ = false, registered_ = false;
    std::vector<Read> reads_;
    Read* free_read_ = nullptr;
    uint32_t in_flight_ = 0;
};

}   // namespace

Status loader_plan(const DataSet& data, const Sampler& sampler, const LoaderConfig& config, Arena& arena, const Log& log,
                   std::unique_ptr<Loader>* loader) {
    *loader = std::make_unique<BlockLoader>(data, sampler, config, arena, log);
    return {};
}

Status loader_start(Loader& loader) { return static_cast<BlockLoader&>(loader).start(); }

}   // namespace gradcast
