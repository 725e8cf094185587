#include "vitrum/explain/explain_photo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "vitrum/core/error.h"
#include "vitrum/data/orientation.h"

namespace vitrum {
namespace {

// Edges of the pictures on a sheet of layers or of one layer's heads, and on that of all heads:
// smaller where there are many of these, but not too small to see what is bright.
constexpr int kCell = 240;
int small_cell(size_t heads) {
  return std::clamp(2100 / static_cast<int>(std::max<size_t>(heads, 1)), 96, 180);
}

NamedArray array_of(const std::string& name, const PatchMap& map) {
  return {name, {map.rows, map.columns}, {map.values.begin(), map.values.end()}};
}

std::string_view name_of(HeadFusion fusion) {
  static constexpr std::string_view kNames[] = {"mean", "maximum", "minimum"};
  return kNames[static_cast<size_t>(fusion)];
}

class Drawer {
 public:
  Drawer(const ExplainedPhoto& photo, const Preprocess& preprocess,
         std::span<const LayerAttention> layers, const ExplainOptions& options, ThreadPool& pool)
      : photo_(photo), preprocess_(preprocess), layers_(layers), options_(options), pool_(pool) {}

  Explanation run() {
    prepare();
    if (options_.attention) options_.layer ? one_layer() : all_layers();
    if (options_.rollout) {
      const std::string what =
          options_.rolled.discard > 0
              ? fmt::format("attention rollout, {} of heads, smallest {:g} % discarded",
                            name_of(options_.rolled.fusion), 100 * options_.rolled.discard)
              : fmt::format("attention rollout, {} of heads", name_of(options_.rolled.fusion));
      one("rollout", what, rolled_);
    }
    if (options_.gradient)
      one("gradient", fmt::format("gradient-weighted attention for {}", options_.target),
          relevance_);
    return std::move(out_);
  }

 private:
  // What takes time and is needed before the first picture, beside each other.
  void prepare() {
    const auto shown = [&](int edge) { return show_photo(photo_.image, preprocess_, edge); };
    pool_.run(5, [&](int64_t part, int) {
      switch (part) {
        case 0:
          if (options_.gradient) relevance_ = gradient_relevance(layers_);
          break;
        case 1:
          if (options_.rollout) rolled_ = rollout(layers_, options_.rolled);
          break;
        case 2: large_ = shown(options_.edge); break;
        case 3:
          if (options_.attention) medium_ = shown(kCell);
          break;
        default:
          if (options_.attention) small_ = shown(small_cell(most_heads()));
      }
    });
  }

  size_t most_heads() const {
    int64_t most = 0;
    for (const LayerAttention& layer : layers_) most = std::max(most, layer.heads);
    return static_cast<size_t>(most);
  }

  Image draw(const ShownPhoto& shown, const PatchMap& map) const {
    Image picture = map.values.empty() ? blank(shown.image.height, shown.image.width)
                                       : overlay(shown, map, range_of(map));
    apply_orientation(photo_.orientation, picture);
    return picture;
  }
  // One picture each, map_of(i) laid over the photo; blank where that has no values.
  template <class MapOf>
  std::vector<Image> draw_all(const ShownPhoto& shown, size_t count, const MapOf& map_of) {
    std::vector<Image> pictures(count);
    pool_.run(static_cast<int64_t>(count), [&](int64_t i, int) {
      pictures[static_cast<size_t>(i)] = draw(shown, map_of(static_cast<size_t>(i)));
    });
    return pictures;
  }

  void add(const std::string& name, Image picture, const Title& title) {
    out_.pictures.push_back({name, with_title(picture, title)});
  }
  // One map over the photo, with its numbers at the ends of the colour bar.
  void one(const std::string& name, const std::string& what, const PatchMap& map) {
    const ColourScale range = range_of(map);
    add(name, draw(large_, map),
        {photo_.name, what, fmt::format("{:.2g}", range.low), fmt::format("{:.2g}", range.high),
         Bar::kLight});
    out_.maps.push_back(array_of(name, map));
  }
  // On a sheet each map has the whole range of light for itself.
  void sheet(const std::string& name, Sheet pictures, const std::string& what) {
    add(name, lay_out(pictures), {photo_.name, what, "least", "most", Bar::kLight});
  }

  void one_layer() {
    const auto found = std::find_if(layers_.begin(), layers_.end(), [&](const LayerAttention& l) {
      return l.number == *options_.layer;
    });
    if (found == layers_.end())
      fail_usage("layer {} does not exist; the model has layers {} to {}", *options_.layer,
                 layers_.front().number, layers_.back().number);
    const LayerAttention& layer = *found;
    const std::string stem = fmt::format("attention-{:02}", layer.number);
    if (options_.head) {
      if (*options_.head >= layer.heads)
        fail_usage("head {} does not exist; {} has heads 0 to {}", *options_.head, layer.name,
                   layer.heads - 1);
      return one(fmt::format("{}-{:02}", stem, *options_.head),
                 fmt::format("attention of {}, head {}", layer.name, *options_.head),
                 attention_map(layer, options_.rolled.fusion, options_.head));
    }
    one(stem,
        fmt::format("attention of {}, {} of heads", layer.name, name_of(options_.rolled.fusion)),
        attention_map(layer, options_.rolled.fusion));
    Sheet heads{.columns = layer.heads <= 4 ? static_cast<size_t>(layer.heads)
                                            : static_cast<size_t>(std::ceil(
                                                  std::sqrt(static_cast<double>(layer.heads))))};
    heads.pictures = draw_all(medium_, static_cast<size_t>(layer.heads), [&](size_t h) {
      return attention_map(layer, options_.rolled.fusion, static_cast<int64_t>(h));
    });
    for (int64_t h = 0; h < layer.heads; ++h)
      heads.captions.push_back(fmt::format("layer {}, head {}", layer.number, h));
    sheet(stem + "-heads", std::move(heads), "attention of " + layer.name + ", head by head");
  }

  void all_layers() {
    std::vector<PatchMap> maps(layers_.size());
    Sheet sheet_of_layers{.columns = std::min<size_t>(4, layers_.size())};
    sheet_of_layers.pictures = draw_all(medium_, layers_.size(), [&](size_t i) {
      return maps[i] = attention_map(layers_[i], options_.rolled.fusion);
    });
    for (size_t i = 0; i < layers_.size(); ++i) {
      sheet_of_layers.captions.push_back(fmt::format("layer {}", i));
      out_.maps.push_back(array_of(fmt::format("attention-{:02}", i), maps[i]));
    }
    sheet("attention-layers", std::move(sheet_of_layers),
          fmt::format("attention by layer, {} of heads", name_of(options_.rolled.fusion)));
    all_heads();
  }

  // A row a layer, a column a head; layers may differ in their number of heads.
  void all_heads() {
    const size_t most = most_heads();
    Sheet heads{.columns = most};
    heads.pictures = draw_all(small_, layers_.size() * most, [&](size_t i) {
      const auto head = static_cast<int64_t>(i % most);
      const LayerAttention& layer = layers_[i / most];
      return head < layer.heads ? attention_map(layer, options_.rolled.fusion, head) : PatchMap{};
    });
    for (size_t i = 0; i < layers_.size(); ++i)
      heads.row_names.push_back(fmt::format("layer {}", i));
    for (size_t h = 0; h < most; ++h) heads.column_names.push_back(fmt::format("head {}", h));
    sheet("attention-heads", std::move(heads), "attention, a row a layer, a column a head");
  }

  const ExplainedPhoto& photo_;
  const Preprocess& preprocess_;
  std::span<const LayerAttention> layers_;
  const ExplainOptions& options_;
  ThreadPool& pool_;
  PatchMap rolled_, relevance_;
  ShownPhoto large_, medium_, small_;
  Explanation out_;
};

}  // namespace

Explanation explain_photo(const ExplainedPhoto& photo, const Preprocess& preprocess,
                          std::span<const LayerAttention> layers, const ExplainOptions& options,
                          ThreadPool& pool) {
  return Drawer(photo, preprocess, layers, options, pool).run();
}

Image distance_plot(const std::vector<std::vector<double>>& distances, const std::string& below) {
  constexpr int kHeight = 320, kLeft = 48, kBottom = 40, kTop = 8, kStep = 40;
  constexpr double kText = 9;
  const auto layers = static_cast<int>(distances.size());
  double most = 0;
  for (const auto& heads : distances)
    for (double d : heads) most = std::max(most, d);
  const double step = most > 100 ? 50 : most > 40 ? 20 : most > 10 ? 5 : most > 2 ? 1 : 0.5;
  const double top = std::max(step, std::ceil(most / step) * step);
  Image out = blank(kHeight, kLeft + std::max(layers, 6) * kStep + 16);
  const double right = out.width - 16, floor = kHeight - kBottom;
  const auto y_of = [&](double d) { return floor - d / top * (floor - kTop); };
  for (double d = 0; d <= top + step / 2; d += step) {
    const std::string label = fmt::format("{:g}", d);
    draw_line(out, {kLeft, y_of(d)}, {right, y_of(d)}, 1, {60, 60, 68});
    draw_text(out, {kLeft - 8 - text_width(label, kText), y_of(d) + kText / 2}, label, kText,
              kFaint);
  }
  for (int l = 0; l < layers; ++l) {
    const std::string label = std::to_string(l);
    const double x = kLeft + (l + 0.5) * kStep;
    draw_text(out, {x - text_width(label, kText) / 2, floor + 16}, label, kText, kFaint);
    const std::vector<double>& heads = distances[static_cast<size_t>(l)];
    for (size_t h = 0; h < heads.size(); ++h)
      draw_line(out, {x, y_of(heads[h])}, {x, y_of(heads[h])}, 9,
                colour_of(0.25 + 0.75 * static_cast<double>(h) /
                                     static_cast<double>(std::max<size_t>(heads.size() - 1, 1))));
  }
  draw_text(out, {kLeft, kHeight - 6.0}, "layer; a dot a head", kText, kFaint);
  return with_title(out, {"mean attention distance, pixels", below});
}

}  // namespace vitrum
