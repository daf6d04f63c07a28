// Kinds of layers that GPUs do not compute in this version.
#include "nn/cuda/build.h"

namespace gradcast::cuda {
namespace {

Status refuse(const Build& b) {
    return fail(Code::unsupported, "layer {}: GPUs do not compute {} in this version: take device cpu", b.layer->spec.name,
                b.layer->kind->name);
}

}   // namespace

Status conv_transposed(Build& b) { return refuse(b); }
Status upsample(Build& b) { return refuse(b); }
Status concat(Build& b) { return refuse(b); }
Status layer_norm(Build& b) { return refuse(b); }
Status group_norm(Build& b) { return refuse(b); }
Status rms_norm(Build& b) { return refuse(b); }
Status multiply(Build& b) { return refuse(b); }
Status linear(Build& b) { return refuse(b); }
Status embedding(Build& b) { return refuse(b); }
Status positions(Build& b) { return refuse(b); }
Status attention(Build& b) { return refuse(b); }

}   // namespace gradcast::cuda
