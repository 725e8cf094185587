#include "vitrum/train/exchange_views.h"

#include <map>

namespace vitrum {

void exchange_views(Communicator& comm, Backend& backend, std::span<const RankView> sends,
                    std::span<const RankView> receives) {
  std::map<const void*, std::vector<std::byte>> staged;  // by the place in the device's memory
  const auto on_host = [&](const TensorView& view) -> std::span<std::byte> {
    if (backend.host_visible()) return {static_cast<std::byte*>(view.data), view.bytes()};
    std::vector<std::byte>& copy = staged[view.data];
    copy.resize(view.bytes());
    return copy;
  };
  std::vector<Communicator::Send> out;
  std::vector<Communicator::Receive> in;
  for (const auto& [rank, view] : sends) {
    if (!view || view.bytes() == 0) continue;
    const bool fresh = !backend.host_visible() && !staged.contains(view.data);
    out.push_back({rank, on_host(view)});
    if (fresh) backend.download(staged[view.data].data(), view);
  }
  for (const auto& [rank, view] : receives)
    if (view && view.bytes() > 0) in.push_back({rank, on_host(view)});
  backend.wait();
  comm.exchange(out, in);
  if (backend.host_visible()) return;
  for (const auto& [rank, view] : receives)
    if (view && view.bytes() > 0) backend.upload(view, staged[view.data].data());
}

void all_gather_views(Communicator& comm, Backend& backend, std::span<const TensorView> parts) {
  std::vector<RankView> sends, receives;
  for (int r = 0; r < comm.size(); ++r) {
    if (r == comm.rank()) continue;
    sends.push_back({r, parts[static_cast<size_t>(comm.rank())]});
    receives.push_back({r, parts[static_cast<size_t>(r)]});
  }
  exchange_views(comm, backend, sends, receives);
}

}  // namespace vitrum
