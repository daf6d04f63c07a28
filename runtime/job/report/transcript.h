// transcript.json, which every node writes at the end of a job: what was trained, by whom, and a chain over the lines of steps.jsonl.
//
// The chain has SHA-256 digests in 64 hex digits.  The first one is that of the text
//     gradcast steps 1\n<id>\n<kernel_set>\n<data_digest>\n<SHA-256 of the job file in hex>\n
// and each line of steps.jsonl gives the next one, that of
//     <digest before> <step> <loss as the line has it> <digest as 16 hex digits>\n
// Nothing in it depends on the node.  It begins with the first line that the node has (`first`): of a job that was resumed elsewhere, or
// that the node came to late, earlier lines are missing.
//
// hmac: HMAC-SHA-256 under a key of the cluster, over the file's content without it, as transcript_content() has it.  Whoever has the key
// can make one: it proves that a member wrote the file, not which one.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/crypto.h"
#include "runtime/job/report/step_lines.h"

namespace gradcast {

struct TranscriptView {
    uint32_t number = 1;
    uint64_t first_step = 1;
    std::vector<std::string> members;   // by rank
};

struct Transcript {
    std::string id, job, data_digest, kernel_set;   // job: the text of the job file
    std::vector<TranscriptView> views;              // of the last run of the job
    uint64_t steps = 0;                             // that are done
    std::string digest;                             // of the model, as that of final.h5
    uint64_t first = 0, lines = 0;                  // step of the chain's first line; number of its lines
    std::string chain;
    std::string key, hmac;   // id of the cluster's key; both empty: not signed
};

class StepChain {
public:
    /// Takes id, job, data_digest and kernel_set.
    explicit StepChain(const Transcript& of);
    void add(const StepLine& line);
    const std::string& hex() const { return hex_; }

private:
    std::string hex_;
};

/// The content without `hmac`, as one line of JSON.
std::string transcript_content(const Transcript& transcript);
std::string transcript_hmac(const Transcript& transcript, const ClusterKey& key);
/// Adds chain and, where there is a key, HMAC, and writes transcript.json into the job's folder, where steps.jsonl is complete.
Status transcript_write(const std::string& folder, Transcript transcript, const ClusterKey* key);
/// An outsider's file: each value is checked, and anything that is not a transcript's is refused by name.
Status transcript_read(const std::string& path, Transcript* transcript);

}   // namespace gradcast
