// A model that nobody has trained, for the commands on models.
#pragma once
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/digest.h"
#include "runtime/job/model/model_file.h"
#include "tests/ctl/ctl.h"

namespace gradcast {

struct CtlModel : CtlData {
    /// final.h5 of an untrained lenet5 for what import() writes.
    /// averages: its optimiser's state is averaged weights, each weight and 1.
    void save(const std::string& name, const std::string& job = {}, const std::string& class_names = {}, bool averages = false) const {
        Model model;
        model.job = job;
        if (!job.empty()) model.id = std::string(32, '1');
        model.class_names = class_names;
        model.base = fs::absolute(folder);
        ASSERT_TRUE(preset_find("lenet5", 1, 28, 28, 10, &model.net).ok());
        model.mean = {0.1f};
        model.std = {0.3f};
        std::vector<Layer> layers;
        ASSERT_TRUE(layers_check(model.net, &layers).ok());
        const Layout layout = layers_layout(layers, 1);
        std::vector<float> parameters(layout.elements);
        weights_initial(model.net, layout, 1, parameters);
        model.digest = sha256_hex(std::as_bytes(std::span(parameters)));
        std::vector<float> averaged;
        for (const float each : parameters)
            if (averages) averaged.push_back(each + 1);
        ASSERT_TRUE(model_write(folder + "/" + name, model, {parameters, averaged, {}, {}}).ok());
    }
};

}   // namespace gradcast
