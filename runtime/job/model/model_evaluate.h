// Accuracy and loss of a saved model on a data set, without a job.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

/// Accuracy (of a regression: the error) of a saved model on a data set, on this machine.  The model: final.h5, a checkpoint, or a file
/// that ends in .safetensors and was written by safetensors_write(); the latter is computed in float32.
struct Evaluation {
    uint64_t count = 0;                                    // samples
    uint64_t right = 0, counted = 0;                       // of classes: one a sample, or one for each of its positions that count
    std::optional<uint64_t> right_of_top = std::nullopt;   // samples whose class is among the Evaluator::top most probable ones
    bool regression = false;                               // loss is the mean squared error, and there are no classes
    bool by_position = false, text = false;
    double loss = 0;                                                            // mean over samples
    std::vector<uint64_t> count_of_class, right_of_class, predicted_of_class;   // empty: of a text
    std::vector<uint64_t> confusion;   // [classes, classes]: how many of the row's class are taken for the column's; see Evaluator
    std::string class_names;           // of the data set, as in DataInfo; empty: not known
    std::string digest;                // of the parameters
    std::string kernels;               // the kernel set
};
/// The mean over classes that occur, in labels or predictions, of right / (labels or predictions of the class): intersection over union.
double mean_iou(const Evaluation& evaluation);
/// literal: as file_glob(), of `data`.  verified: the record of data_verify_once().  averaged: as ModelNet::open().
Status model_evaluate(const std::string& path, const std::string& data, uint32_t threads, Evaluation* evaluation, size_t literal = 0,
                      const std::string& verified = {}, bool averaged = false);

}   // namespace gradcast
