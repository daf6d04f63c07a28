// The clip of a step's gradient by its norm, from the exact integer sums.
//
//     norm = sqrt(sum over groups of  Q_g u_g^2),   Q_g = sum of S^2 over the group's elements,   u_g: the group's unit
//     u_g <- u_g c,   c = min(1, most / (norm + 1e-6))              as torch.nn.utils.clip_grad_norm_
//
// Q_g is exact: the squares are added as integers.  Products and the sum over groups are double, in the order of the groups.  So the bits
// of c depend neither on lanes nor on the number of nodes.  Statistics of a mini-batch are no gradient: they are not counted, and keep
// their units.  Frozen tensors do not count.  Optimisers add weight decay later, to the clipped gradient.
#pragma once
#include <span>
#include <vector>

#include "nn/net.h"
#include "nn/optimiser.h"

namespace gradcast {

class NormClip {
public:
    /// By config.clip_norm, which is above 0; config.ranges say what is frozen.
    NormClip(const OptimiserConfig& config, const Layout& layout);
    /// Gives sums, which are those of all buckets of the layout in order, the units of the clipped gradient.  These are valid until the
    /// next call.  The layout is that of the constructor.  Trainer thread, which shares the work with the lanes.
    /// Reads each sum once.
    void apply(Lanes& lanes, const Layout& layout, std::span<BucketSum> sums);
    /// Of the last call: before the clip.
    double norm() const { return norm_; }

private:
    struct Piece {
        uint32_t bucket, group;
        uint64_t offset, count;
        unsigned __int128 low = 0, high = 0;   // sum of squares: low + 2^64 high
    };
    const double most_;
    double norm_ = 0;
    std::vector<Piece> pieces_;   // in the order of groups
    std::vector<double> units_;   // by group
};

}   // namespace gradcast
