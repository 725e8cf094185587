#include "vitrum/runtime/link.h"

#include "vitrum/core/error.h"

namespace vitrum {
namespace {

class DirectLink final : public Link {
 public:
  using Link::Link;
  std::shared_ptr<Kernel> exchange(RankViews views) override {
    std::vector<Communicator::Send> out;
    std::vector<Communicator::Receive> in;
    const auto bytes = [](const TensorView& v) {
      return std::span(static_cast<std::byte*>(v.data), v.bytes());
    };
    for (const auto& [rank, view] : views.sends) out.push_back({rank, bytes(view)});
    for (const auto& [rank, view] : views.receives) in.push_back({rank, bytes(view)});
    return make_kernel(
        [this, out = std::move(out), in = std::move(in)] { exchange_all(comm(), out, in); });
  }
  std::shared_ptr<Kernel> arrived() override {
    return make_kernel([] {});
  }
  std::string name() const override { return "the processes' own connections"; }
};

}  // namespace

std::shared_ptr<Link> make_link(Backend& backend, Communicator& comm) {
  if (std::shared_ptr<Link> own = backend.link(comm)) return own;
  if (!backend.host_visible()) fail("{} knows no other processes", backend.name());
  return std::make_shared<DirectLink>(comm);
}

RankViews gather_views(const Communicator& comm, const std::vector<TensorView>& parts) {
  RankViews views;
  for (int r = 0; r < comm.size(); ++r) {
    if (!is_peer(comm, r)) continue;
    views.sends.push_back({r, parts[static_cast<size_t>(comm.rank())]});
    views.receives.push_back({r, parts[static_cast<size_t>(r)]});
  }
  return views;
}

}  // namespace vitrum
