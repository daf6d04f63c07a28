#include "tests/nn/reference.h"

namespace gradcast {
namespace {

class Reference : public testing::TestWithParam<const char*> {};
TEST_P(Reference, GivesPyTorchsNumbers) { expect_reference<Rig>(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Nets, Reference, testing::ValuesIn(reference_names), [](const auto& p) { return p.param; });

}   // namespace
}   // namespace gradcast
