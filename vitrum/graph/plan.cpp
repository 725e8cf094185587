#include <algorithm>
#include <numeric>

#include "vitrum/core/ceil_div.h"
#include "vitrum/graph/passes.h"

namespace vitrum {
namespace {

constexpr int64_t kAlign = 64;

struct Life {
  ValueId id;
  int first, last;  // nodes that write and read it, inclusive; joined nodes count as the first
  int64_t size, offset = 0;
};

std::vector<Life> lifetimes(const Graph& g, std::span<const Value> outputs,
                            const std::vector<bool>& joined) {
  std::vector<int> first(g.values.size(), -1), last(g.values.size(), -1);
  for (int i = 0; i < static_cast<int>(g.nodes.size()); ++i) {
    const Node& node = g.nodes[static_cast<size_t>(i)];
    for (const auto* ids : {&node.in, &node.out})
      for (ValueId v : *ids)
        if (v != kAbsent) {
          int& f = first[static_cast<size_t>(v)];
          f = f < 0 ? i : f, last[static_cast<size_t>(v)] = i;
        }
  }
  for (Value v : outputs) last[static_cast<size_t>(v.id())] = static_cast<int>(g.nodes.size());
  const auto moment = [&](int node) {
    const auto with_before = [&](int i) {
      return i > 0 && i <= static_cast<int>(joined.size()) && joined[static_cast<size_t>(i) - 1];
    };
    while (with_before(node)) --node;
    return node;
  };
  std::vector<Life> lives;
  for (size_t v = 0; v < g.values.size(); ++v) {
    const ValueInfo& info = g.values[v];
    if (info.role != Role::kTemp || first[v] < 0) continue;
    const int from = moment(first[v]), to = moment(last[v]);
    if (from == to && first[v] != last[v]) continue;  // inside joined nodes
    const int64_t bytes = info.shape.numel() * static_cast<int64_t>(size_of(info.dtype));
    lives.push_back({static_cast<ValueId>(v), from, to, round_up(bytes, kAlign)});
  }
  return lives;
}

int64_t most_alive(const std::vector<Life>& lives, size_t nodes) {
  std::vector<int64_t> change(nodes + 2, 0);
  for (const Life& l : lives) {
    change[static_cast<size_t>(l.first)] += l.size;
    change[static_cast<size_t>(l.last) + 1] -= l.size;
  }
  std::partial_sum(change.begin(), change.end(), change.begin());
  return *std::max_element(change.begin(), change.end());
}

// Each tensor in turn goes to the lowest offset that is free during its whole life.
int64_t place(std::vector<Life>& lives, const std::vector<size_t>& order) {
  std::vector<const Life*> placed;  // sorted by offset
  int64_t top = 0;
  for (size_t i : order) {
    Life& l = lives[i];
    int64_t at = 0;
    for (const Life* p : placed) {
      if (p->first > l.last || l.first > p->last) continue;
      if (at + l.size <= p->offset) break;
      at = std::max(at, p->offset + p->size);
    }
    l.offset = at, top = std::max(top, at + l.size);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), &l,
                         [](const Life* a, const Life* b) { return a->offset < b->offset; }),
        &l);
  }
  return top;
}

// Orders the placement by `before`, then keeps moving the first tensor that does not fit under the
// lower bound to the front: it is the one with the least freedom. Stops at the bound, or when
// moving has not helped for long.
int64_t place_best(std::vector<Life>& lives, bool (*before)(const Life&, const Life&),
                   int64_t bound) {
  constexpr int kPatience = 200;
  std::vector<size_t> order(lives.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return before(lives[a], lives[b]); });
  int64_t best = place(lives, order);
  std::vector<Life> best_lives = lives;
  for (int tries = 0; best > bound && tries < kPatience; ++tries) {
    const auto tight = std::find_if(order.begin(), order.end(), [&](size_t i) {
      return lives[i].offset + lives[i].size > bound;
    });
    if (tight == order.end()) break;
    std::rotate(order.begin(), tight, tight + 1);
    const int64_t bytes = place(lives, order);
    if (bytes < best) best = bytes, best_lives = lives, tries = 0;
  }
  lives = std::move(best_lives);
  return best;
}

}  // namespace

Plan plan_memory(const Graph& g, std::span<const Value> outputs, bool share,
                 const std::vector<bool>& joined) {
  std::vector<Life> lives = lifetimes(g, outputs, joined);
  Plan plan{.offset = std::vector<int64_t>(g.values.size(), -1),
            .lower_bound = most_alive(lives, g.nodes.size())};
  for (const Life& l : lives) plan.naive_bytes += l.size;
  if (!share)
    for (Life& l : lives) l.first = 0, l.last = static_cast<int>(g.nodes.size());

  // No single order is best for every graph; the first to meet the lower bound wins, else the
  // smallest.
  using Before = bool (*)(const Life&, const Life&);
  const Before orders[] = {
      [](const Life& a, const Life& b) {
        return a.last - a.first != b.last - b.first ? a.last - a.first > b.last - b.first
                                                    : a.size > b.size;
      },
      [](const Life& a, const Life& b) {
        return a.size != b.size ? a.size > b.size : a.first < b.first;
      },
      [](const Life& a, const Life& b) {
        return a.size * (a.last - a.first + 1) > b.size * (b.last - b.first + 1);
      },
      [](const Life& a, const Life& b) {
        return a.first != b.first ? a.first < b.first : a.size > b.size;
      },
  };
  std::vector<Life> best;
  for (Before before : orders) {
    const int64_t bytes = place_best(lives, before, share ? plan.lower_bound : plan.naive_bytes);
    if (best.empty() || bytes < plan.bytes) best = lives, plan.bytes = bytes;
    if (!share || plan.bytes == plan.lower_bound) break;
  }
  for (const Life& l : best) plan.offset[static_cast<size_t>(l.id)] = l.offset;
  return plan;
}

}  // namespace vitrum
