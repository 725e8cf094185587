// A teacher beside the student: whenever its kernels run between start and end of the side stream,
// a step has the bits of one that does one thing after the other.
#include <gtest/gtest.h>

#include "tests/support/tiny_run.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/runtime/communicator.h"
#include "vitrum/runtime/link.h"
#include "vitrum/train/step.h"

namespace vitrum {
namespace {

using test::TinyRun;

// The CPU's, with a side stream whose kernels run when they are launched, or as late as they may.
class Sided final : public Backend {
 public:
  explicit Sided(bool late) : late_(late) {}
  std::string name() const override { return cpu_->name(); }
  Buffer allocate(size_t bytes) override { return cpu_->allocate(bytes); }
  void upload(TensorView to, const void* from) override { cpu_->upload(to, from); }
  void download(void* to, TensorView from) override { cpu_->download(to, from); }
  bool host_visible() const override { return true; }
  bool packs_weights() const override { return cpu_->packs_weights(); }
  std::unique_ptr<Kernel> lower(const Op& op, const Operands& io) override {
    return placed(cpu_->lower(op, io));
  }
  size_t joins(std::span<const ChainNode> chain) const override { return cpu_->joins(chain); }
  std::unique_ptr<Kernel> lower_joined(std::span<const ChainNode> joined) override {
    return placed(cpu_->lower_joined(joined));
  }
  std::shared_ptr<SideStream> side_stream() override { return std::make_shared<Aside>(*this); }

  int started = 0, ended = 0, inside = 0;  // how often; its kernels

 private:
  class Aside final : public SideStream {
   public:
    explicit Aside(Sided& of) : of_(of) {}
    void enter() override { of_.lowering_ = true; }
    void leave() override { of_.lowering_ = false; }
    std::shared_ptr<Kernel> start() override {
      return make_kernel([this] { ++of_.started, of_.running_ = true; });
    }
    std::shared_ptr<Kernel> end() override {
      return make_kernel([this] {
        for (const auto& kernel : std::exchange(of_.waiting_, {})) kernel->launch();
        ++of_.ended, of_.running_ = false;
      });
    }

   private:
    Sided& of_;
  };

  std::unique_ptr<Kernel> placed(std::unique_ptr<Kernel> kernel) {
    if (!lowering_) return kernel;
    return make_kernel([this, kernel = std::shared_ptr<Kernel>(std::move(kernel))] {
      ASSERT_TRUE(running_);
      ++inside;
      late_ ? waiting_.push_back(kernel) : kernel->launch();
    });
  }

  const std::unique_ptr<Backend> cpu_ = make_backend({.device = "cpu", .threads = 1});
  const bool late_;
  bool lowering_ = false, running_ = false;
  Kernels waiting_;
};

enum class How { kWhole, kParts, kLinked };
constexpr int kSteps = 3;

class SideStreamTest : public testing::Test {
 protected:
  SideStreamTest() {
    Recipe teacher = tiny_.recipe();
    teacher.max_steps = 4;
    Trainer(teacher, tiny_.options("teacher")).run();
  }
  Recipe recipe() const {
    Recipe r = tiny_.recipe();
    r.teacher = tiny_ / "teacher/best", r.distillation = Distillation::kSoft, r.tau = 2;
    return r;
  }
  // The weights after some steps.
  static std::vector<float> train(const Recipe& recipe, Backend& backend, How how) {
    const TrainData data(recipe);
    const ModelSpec model = model_for(recipe, data.train());
    Alone alone;
    const std::shared_ptr<Link> link = how == How::kLinked ? make_link(backend, alone) : nullptr;
    TrainStep step(model, recipe, DType::kF32, backend, InputStage::kPixels, link.get());
    step.set_teacher(
        std::make_unique<Teacher>(recipe, model, DType::kF32, backend, step.teacher_views()));
    Loader loader(data.train(), loader_config(recipe, model, data.train(), 1));
    loader.start(0);
    Batch batch;
    for (int i = 0; i < kSteps && loader.next(batch); ++i) {
      if (how == How::kWhole) {
        step.run(batch, 1e-3, i);
        continue;
      }
      step.backward(batch, batch.count, i), step.fold(0), step.sum();
      step.update(1e-3, i);
    }
    step.results();
    const TensorView all = step.store().arena(Arena::kMaster);
    std::vector<float> weights(static_cast<size_t>(all.shape.numel()));
    backend.download(weights.data(), all);
    return weights;
  }

  TinyRun tiny_;
};

TEST_F(SideStreamTest, WhenItsKernelsRunChangesNoBits) {
  for (const char* mix : {"", "mixed"}) {
    Recipe r = recipe();
    if (*mix) r.mixup = 0.8, r.augment = "crop-flip";
    const auto plain = make_backend({.device = "cpu", .threads = 1});
    const std::vector<float> expected = train(r, *plain, How::kWhole);
    for (const How how : {How::kWhole, How::kParts, How::kLinked})
      for (const bool late : {false, true}) {
        Sided backend(late);
        EXPECT_EQ(train(r, backend, how), expected) << static_cast<int>(how) << late << mix;
        EXPECT_EQ(backend.started, kSteps);  // once a step
        EXPECT_EQ(backend.ended, kSteps);
        EXPECT_GT(backend.inside, 10 * kSteps);
      }
  }
}

// By itself, and kernel by kernel, the side stream ends with each kernel.
TEST_F(SideStreamTest, AProgramRunsAloneToo) {
  const Recipe r = recipe();
  const TrainData data(r);
  const ModelSpec model = model_for(r, data.train());
  const auto logits = [&](Backend& backend, bool traced) {
    TrainStep step(model, r, DType::kF32, backend);
    Teacher teacher(r, model, DType::kF32, backend, step.teacher_views());
    Loader loader(data.train(), loader_config(r, model, data.train(), 1));
    loader.start(0);
    Batch batch;
    loader.next(batch);
    backend.upload(step.teacher_views().pixels, batch.pixels().data());
    if (traced)
      teacher.program()->run_traced([](const Program::Step&, double) {});
    else
      teacher.program()->run();
    const TensorView view = step.teacher_views().logits;
    std::vector<float> all(static_cast<size_t>(view.shape.numel()));
    backend.download(all.data(), view);
    return all;
  };
  const auto plain = make_backend({.device = "cpu", .threads = 1});
  const std::vector<float> expected = logits(*plain, false);
  Sided late(true);
  EXPECT_EQ(logits(late, false), expected);
  EXPECT_EQ(logits(late, true), expected);
  EXPECT_EQ(late.started, late.inside);
}

}  // namespace
}  // namespace vitrum
