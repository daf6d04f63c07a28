// What people are told of the presets (nn/net.h finds and names them), and what their samples have.
#pragma once
#include <string>

#include "nn/net.h"

namespace gradcast {

/// A line each: its samples, its parameters for one kind of them, what it is for.
std::string presets_help();
/// Completes the spec of a preset's layers (preset_layers()) by what its samples have in place of a label: a mask of bytes, or the number
/// of a regression.  The other presets' samples have labels.
void preset_targets(const std::string& name, NetSpec* spec);

/// GPT-2 (Radford et al. 2019): embedding, positions, `depth` blocks of attention and of two linear layers with gelu, each behind a
/// layer_norm and with a residual sum; layer_norm and a linear layer without bias.  With `dropout`, layers of it lie behind the positions
/// and before each residual sum, and attention has it.  Error: `heads` does not divide `width`.
Status preset_gpt(NetSpec& spec, const PresetSize& size);
/// ViT-S (Dosovitskiy et al. 2021; Touvron et al. 2021) with the mean over all patches in place of a class token: patches of 16x16, below
/// 64 pixels of 4x4.  Error: sides that are no multiples of a patch.
Status preset_vit_s(NetSpec& spec);

}   // namespace gradcast
