#include <cstring>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/reference.h"

namespace vitrum {
namespace {

class ReferenceBackend final : public Backend {
 public:
  std::string name() const override { return "reference"; }
  Buffer allocate(size_t bytes) override { return allocate_host(bytes); }
  void upload(TensorView to, const void* from) override { std::memcpy(to.data, from, to.bytes()); }
  void download(void* to, TensorView from) override { std::memcpy(to, from.data, from.bytes()); }
  bool host_visible() const override { return true; }

  std::unique_ptr<Kernel> lower(const Op& op, const Operands& io) override {
    return std::visit(
        [&](const auto& o) { return make_kernel([o, io] { reference::run(o, io); }); }, op);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace vitrum
