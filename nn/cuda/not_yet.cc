// Kinds of layers that GPUs do not compute in this version.
#include "nn/cuda/build.h"

namespace gradcast::cuda {
namespace {

Status refuse(const Build& b) {
    return fail(Code::unsupported, "layer {}: GPUs do not compute {} in this version: take device cpu", b.layer->spec.name,
                b.layer->kind->name);
}

}   // namespace

Status rms_norm(Build& b) { return refuse(b); }
Status multiply(Build& b) { return refuse(b); }

}   // namespace gradcast::cuda
