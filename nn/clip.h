// The clip of a step's gradient by its norm, from the exact integer sums.
//
//     norm = sqrt(sum over groups of  Q_g u_g^2),   Q_g = sum of S^2 over the group's elements,   u_g: the group's unit
//     u_g <- u_g c,   c = min(1, most / (norm + 1e-6))              as torch.nn.utils.clip_grad_norm_
//
// A node computes the terms of the groups that it has.  Of a net in stages or slices the terms of all nodes come together before the norm
// is computed (algos/cells.h); a node with the whole net has all terms itself.
//
// Where the loss is a mean over positions that count (mean_over_valid() in nn/graph/layers.h), the units have no factor yet when the norm
// is computed: the norm of the step's gradient is then that factor times this one.
//
// Q_g is exact: the squares are added as integers.  Products and the sum over groups are double, in the order of the groups.  So the bits
// of c depend neither on lanes nor on the number of nodes, and on no cut.  Statistics of a mini-batch are no gradient: they are not
// counted, and keep their units.  Frozen tensors do not count.  Optimisers add weight decay later, to the clipped gradient.
#pragma once
#include <span>
#include <vector>

#include "nn/net.h"
#include "nn/optimiser.h"

namespace gradcast {

class NormClip {
public:
    /// By config.clip_norm, which is above 0; config.ranges say what is frozen.  layout: of the whole net, or of a part of it.
    NormClip(const OptimiserConfig& config, const Layout& layout);
    /// Computes Q_g u_g^2 by group of the layout; it is 0 where a group does not count.  The result is valid until the next call.
    /// sums: those of all buckets of the layout in order; only their words and units are read, and of statistics nothing is.  The layout
    /// is that of the constructor.  lanes: they share the work, on the trainer thread; null: this thread does it alone.
    /// Reads each sum once.  Allocates nothing.
    std::span<const double> terms(Lanes* lanes, const Layout& layout, std::span<const BucketSum> sums);
    /// The norm of a gradient, before the clip, from the terms of all groups of the whole net in their order.
    static double norm(std::span<const double> terms);
    /// c, by which the clip multiplies a gradient of that norm.
    double factor(double norm) const;

private:
    struct Piece {
        uint32_t bucket, group;
        uint64_t offset, count;
        unsigned __int128 low = 0, high = 0;   // sum of squares: low + 2^64 high
    };
    const double most_;
    std::vector<Piece> pieces_;   // in the order of groups
    std::vector<double> terms_;   // by group
};

/// The units of a step's sums, all times one factor.  Those of statistics stay.
class ScaledUnits {
public:
    explicit ScaledUnits(const Layout& layout) : units_(layout.groups.size()) {}
    /// Gives the sums, which are those of all buckets of the layout in order, such units.  They are valid until the next call.
    /// Allocates nothing.
    void apply(const Layout& layout, double factor, std::span<BucketSum> sums);

private:
    std::vector<double> units_;   // by group
};

}   // namespace gradcast
