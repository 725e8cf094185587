#include "vitrum/train/checkpoint.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/train/exchange_views.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

constexpr const char* kFormat = "vitrum-state-1";

struct NamedArena {
  Arena arena;
  const char* name;
};
constexpr std::array kSaved = {
    NamedArena{Arena::kMaster, "weights"}, NamedArena{Arena::kMoment1, "moment1"},
    NamedArena{Arena::kMoment2, "moment2"}, NamedArena{Arena::kEma, "ema"}};

// Those of which a process keeps what it updates only.
constexpr std::array kShared = {Arena::kMoment1, Arena::kMoment2, Arena::kEma};

// Every tensor of the state with its name in the file. Views have no data where the store keeps a
// part only.
struct StateTensor {
  NamedTensor named;
  Arena arena = Arena::kMaster;
  int param = -1;  // -1: a state
};
std::vector<StateTensor> state_of(ParamStore& store) {
  std::vector<StateTensor> all;
  for (const NamedArena& a : kSaved) {
    if (!store.has(a.arena)) continue;
    for (size_t i = 0; i < store.specs().size(); ++i) {
      if (!store.has_room(i, a.arena)) continue;
      TensorView view{nullptr, store.specs()[i].shape, store.dtype(a.arena)};
      if (store.keeps_all(a.arena)) view = store.view(i, a.arena);
      all.push_back({{fmt::format("{}/{}", a.name, store.specs()[i].name), view},
                     a.arena,
                     static_cast<int>(i)});
    }
  }
  for (const auto& [name, view] : store.states()) all.push_back({{"state/" + name, view}});
  return all;
}

ParamStore same_layout(const ParamStore& store, Backend& backend) {
  Graph g;
  g.params = store.specs();
  return ParamStore(g, backend, store.dtype(Arena::kMaster));
}

using Metadata = std::map<std::string, std::string>;

// Calls visit(key, member) for every counter.
template <class P, class Visit>
void each_counter(P& p, Visit&& visit) {
  visit("step", p.step);
  visit("epochs", p.epochs);
  visit("loss_images", p.loss_images);
  visit("seconds", p.seconds);
  visit("best_accuracy", p.best_accuracy);
  visit("best_epoch", p.best_epoch);
}

Metadata metadata_of(const TrainPosition& position) {
  Metadata metadata = {{"format", kFormat}};
  // The shortest text that reads back as the same bits.
  each_counter(position, [&](const char* key, auto x) { metadata[key] = fmt::format("{}", x); });
  return metadata;
}

TrainPosition position_of(const Metadata& metadata, const std::string& path) {
  const auto format = metadata.find("format");
  if (format == metadata.end() || format->second != kFormat)
    fail_input("'{}' is not a training state of this version", path);
  TrainPosition position;
  each_counter(position, [&](const char* key, auto& x) {
    const auto it = metadata.find(key);
    const std::string text = it == metadata.end() ? "" : it->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
    if (error != std::errc() || end != text.data() + text.size())
      fail_input("'{}': the counter '{}' is missing or not a number", path, key);
  });
  constexpr int64_t kMostSteps = int64_t{1} << 53, kMostEpochs = 1 << 30;
  if (position.step < 0 || position.epochs < 0 || position.best_epoch < 0)
    fail_input("'{}': a negative counter", path);
  if (position.step > kMostSteps || position.epochs > kMostEpochs ||
      position.best_epoch > position.epochs + 1)
    fail_input("'{}': {} steps and {} epochs, the best of them {}, are no place in a run", path,
               position.step, position.epochs, position.best_epoch);
  return position;
}

}  // namespace

std::string checkpoint_path(const std::string& run) { return run + "/state/state.safetensors"; }

bool has_checkpoint(const std::string& run) {
  std::error_code ignored;
  return std::filesystem::exists(checkpoint_path(run), ignored);
}

Snapshot::Snapshot(ParamStore& store, const WorkShare& share)
    : host_(make_backend({.device = "reference"})), store_(same_layout(store, *host_)) {
  take(store, share);
}

void Snapshot::take(ParamStore& store, const WorkShare& share) {
  const auto copy = [&](TensorView to, TensorView from) {
    store.backend().download(to.data, from);
  };
  for (const NamedArena& a : kSaved)
    if (store.has(a.arena) && store.keeps_all(a.arena))
      copy(store_.arena(a.arena), store.arena(a.arena));
  for (const auto& [name, view] : store.states())
    copy(store_.state(name, view.shape, view.dtype), view);
  if (!share.comm()) return;
  for (const Arena arena : kShared) {
    if (!store.has(arena)) continue;
    const auto part = [&](ParamStore& of, int rank) {
      return of.part(arena, share.elements(rank).first, share.elements(rank).size());
    };
    if (share.elements().size() > 0) copy(part(store_, share.rank()), part(store, share.rank()));
    std::vector<RankView> receives;
    for (int r = 1; r < share.ranks(); ++r) receives.push_back({r, part(store_, r)});
    exchange_views(*share.comm(), *host_, {}, receives);
  }
}

void contribute(ParamStore& store, const WorkShare& share) {
  for (const Arena arena : kShared) {
    if (!store.has(arena)) continue;
    const RankView own{0, store.part(arena, share.elements().first, share.elements().size())};
    exchange_views(*share.comm(), store.backend(), std::span(&own, 1), {});
  }
}

bool Snapshot::finite() {
  const TensorView weights = store_.arena(Arena::kMaster);
  return all_finite(std::span(weights.f32(), static_cast<size_t>(weights.shape.numel())));
}

void save_checkpoint(const std::string& run, Snapshot& snapshot, const TrainPosition& position) {
  ensure_directory(run + "/state");
  std::vector<NamedTensor> tensors;
  for (const StateTensor& t : state_of(snapshot.store())) tensors.push_back(t.named);
  write_safetensors(checkpoint_path(run), tensors, metadata_of(position));
}

TrainPosition load_checkpoint(const std::string& run, ParamStore& store) {
  const SafetensorsFile file(checkpoint_path(run));
  const TrainPosition position = position_of(file.metadata(), file.path());
  const std::vector<StateTensor> tensors = state_of(store);
  if (file.tensors().size() != tensors.size())
    fail_input("'{}' has {} tensors, this model and optimiser have {}", file.path(),
               file.tensors().size(), tensors.size());
  for (const auto& [t, arena, param] : tensors) {
    const TensorInfo& info = file.at(t.name);
    if (info.dtype != t.tensor.dtype || info.shape != t.tensor.shape)
      fail_input("'{}': {} is {} {}, expected {} {}", file.path(), t.name, name_of(info.dtype),
                 info.shape.str(), name_of(t.tensor.dtype), t.tensor.shape.str());
  }
  for (const auto& [t, arena, param] : tensors) {
    const std::byte* from = file.bytes(file.at(t.name)).data();
    if (param < 0)
      store.backend().upload(t.tensor, from);
    else
      store.upload(static_cast<size_t>(param), arena, from);
  }
  file.check_intact();
  store.refresh_compute();
  return position;
}

}  // namespace vitrum
