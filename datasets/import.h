// The interface of the importers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "datasets/import_state.h"
#include "datasets/shard.h"
#include "datasets/spool.h"
#include "runtime/core/clock.h"

namespace gradcast {

/// When ImportConfig::progress is called: about 10 times a second, and at a turn.
class ImportPace {
public:
    bool due(bool turn) {
        constexpr uint64_t period_us = 100'000;
        if (!turn && clock_us() - told_us_ < period_us) return false;
        told_us_ = clock_us();
        return true;
    }

private:
    uint64_t told_us_ = 0;
};

constexpr uint32_t import_side_max = 4096;   // of ImportConfig::size

/// One half of a data set: its labels in memory, its images on disk.
struct Set {
    uint32_t C = 1, H = 0, W = 0;
    Element element = Element::u8;
    Spool images;   // [count, C, H, W] of `element`, in the order of labels
    std::vector<int32_t> labels;
    uint32_t targets_each = 0;    // above 0: floats in place of the label
    std::vector<float> targets;   // [count, targets_each]
    bool masked = false;
    Spool masks;                      // where masked: [count, H, W]
    std::vector<uint32_t> lengths;    // of pictures: bytes of each JPEG; `images` has it before the JPEG, too, in 4 bytes
    uint32_t side = 0, longest = 0;   // of pictures: DataInfo::side and longest
    uint64_t tokens = 0;              // of a text, which has no labels: how many are in `images`
    uint64_t count() const { return tokens > 0 ? tokens : labels.size(); }
};

/// The place where an importer puts what it reads.
struct Import {
    ImportFiles kept;                 // of kinds that go on after they were killed, which call keep()
    Set train, test;                  // both open, but for kinds that call keep(); test stays empty if there is none
    std::string class_names = {};     // separated by commas; empty: not known
    uint32_t classes = 0;             // of masks
    int32_t ignore = -1;              // DataInfo::ignore
    uint32_t vocabulary = 0;          // DataInfo::vocabulary
    std::string alphabet = {};        // DataInfo::alphabet
    std::vector<std::string> notes;   // ImportResult::notes
    /// Opens the spools, masks too where `masked`, and sets *state to how far an import of the same was that was killed; else to the
    /// beginning.  what: a digest of the arguments and files.  of_all: behind the number in the note, as " of 9 images".  shown: what one
    /// of ImportState::taken is in the note.
    Status keep(const ImportConfig& config, const std::string& what, const std::string& of_all, ImportState* state, uint64_t shown = 1,
                bool masked = false);
};

/// classes 0: 1 + the largest label.
using ReadSets = Status (*)(const ImportConfig& config, uint32_t classes, Import* import);

Status image_sets(const ImportConfig& config, uint32_t classes, Import* import);   // import_images.cc
Status idx_sets(const ImportConfig& config, uint32_t classes, Import* import);     // import_idx.cc
Status npy_sets(const ImportConfig& config, uint32_t classes, Import* import);     // import_npy.cc
Status table_sets(const ImportConfig& config, uint32_t classes, Import* import);   // import_table.cc
Status mask_sets(const ImportConfig& config, uint32_t classes, Import* import);    // import_masks.cc
Status text_sets(const ImportConfig& config, uint32_t classes, Import* import);    // import_text.cc
Status token_sets(const ImportConfig& config, uint32_t classes, Import* import);   // import_text.cc

/// Which samples ImportConfig::test takes: of n samples of a class the nearest number to n * test, at most n - 1; chosen by
/// (seed, sample).
std::vector<bool> test_choose(const ImportConfig& config, const std::vector<int32_t>& labels);
/// A label that is not below the classes.
Status label_error(const std::string& path, uint64_t sample, uint64_t label, uint32_t classes);

/// Synthetic ridge regression: x in R^500 and noise standard normal, y = <x, 1> + noise, y computed from the stored x.  A shard holds
/// integers: an element is (pixel - 128) / 32 (by mean and std), the target (label - 32768) / 256.
Status ridge_sets(const ImportConfig& config, uint32_t classes, Import* import);
constexpr uint32_t ridge_levels = 65536;
constexpr uint64_t ridge_samples_max = 10'000'000;   // 5 GB
constexpr float ridge_target_scale = 1.0f / 256, ridge_mean = 128.0f / 255, ridge_std = 32.0f / 255;

}   // namespace gradcast
