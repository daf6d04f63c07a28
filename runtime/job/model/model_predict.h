// The classes that a saved model sees in PNG and JPEG files: of each image, or of each of its pixels.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "datasets/image_sample.h"
#include "nn/graph/layer_kind.h"
#include "runtime/job/model/evaluate.h"
#include "runtime/job/model/model_net.h"

namespace gradcast {

struct Guess {
    uint32_t label = 0;
    float probability = 0;   // where Predictor::probabilities() is false, the net's output
};
struct Prediction {
    std::string error;                // of an image that cannot be used: names the file; else empty
    std::vector<uint8_t> mask = {};   // of Predictor::masks(): classes [H, W]
    std::vector<Guess> best = {};     // else: the most probable classes, the best first; of equal ones the lower label first
};

class Predictor {
public:
    /// Opens a model as ModelNet does.  rules.size: 0, or what the short side of each image is resized to, at least the side of the model's
    /// images, which are cut out of the middle.  Where Model::pictures_side is known, 0 stands for it; and then, or where the size is more
    /// than the model's side, an image is stored as a JPEG and decoded as evaluations do it with pictures, so that the sample is the same.
    /// Error: a regression, a net whose samples are no images, another size, masks of more than 256 classes.
    Status open(const std::string& path, const ImageRules& rules, uint32_t threads, bool averaged = false);
    /// How many images a call of run() should have, so that all threads work.
    size_t images_at_once() const { return size_t{net_.threads} * evaluation_batch; }
    /// results[i]: of paths[i], with the `top` most probable classes.  Blocks.  Error: of the net, not of an image.
    Status run(std::span<const std::string> paths, uint32_t top, std::span<Prediction> results);
    /// The net ends with softmax_cross_entropy, not with squared_loss.
    bool probabilities() const { return !layer_kind_find(net_.model.net.layers.back().kind)->regression; }
    /// The net has a class for each pixel.
    bool masks() const { return net_.model.net.by_position(); }
    const Model& model() const { return net_.model; }
    const char* kernels() const { return net_.net->kernels(); }
    /// Of all images so far that could be used.
    const ImageOddities& oddities() const { return oddities_; }

private:
    struct Room {
        Buffer images, labels, outputs;   // labels: zeros, or masks of zeros; outputs: [batch, classes], or the pixels' classes
    };
    struct Read {
        ImageFile image;   // without its bytes
        std::string odd;
    };
    /// An image's sample, into `to`, and what is odd about it.
    Status read(const std::string& path, uint8_t* to, Read* read) const;
    Status batch(uint32_t lane, std::span<const std::string> paths, uint32_t top, std::span<Prediction> results, std::span<Read> reads);

    std::string path_;
    ImageRules rules_;
    ModelNet net_;
    std::vector<Room> rooms_;   // by lane
    ImageOddities oddities_;
};

}   // namespace gradcast
