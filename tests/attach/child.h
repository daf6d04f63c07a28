// A process that computes a net, for tests: this test program itself, started again, which follows the border in plain C++.
#pragma once
#include <string>
#include <vector>

namespace gradcast {

/// The command that starts it.  The net is a softmax regression: tensors "w" [classes, pixels] and "b" [classes].  mode: "good", or what it
/// does wrong, as child.cc has it.  sources: paths of files, whose texts are numbers: they are the program's modules, and its gradients are
/// multiplied by them.
std::vector<std::string> child_command(const std::string& mode = "good", const std::vector<std::string>& sources = {});
/// The same as net.command of a job file.
std::string child_toml(const std::string& mode = "good", const std::vector<std::string>& sources = {});

}   // namespace gradcast
