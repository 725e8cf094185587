// Files written by torch and NumPy (tools/check/check_readers.py --golden), against the same values
// computed here or held by another file.
#include <fcntl.h>

#include <cstring>

#include "tests/support/archives.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/npz.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/pytorch.h"

namespace vitrum {
namespace {

const std::string kGolden = VITRUM_SOURCE_DIR "/tests/golden/readers/";

template <class T>
std::vector<T> values(const TensorSource& source, const std::string& name) {
  const TensorInfo& tensor = source.at(name);
  const auto bytes = source.bytes(tensor);
  EXPECT_EQ(bytes.size(), tensor.bytes) << name;
  std::vector<T> all(bytes.size() / sizeof(T));
  if (!all.empty()) std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

void expect_same(const TensorSource& a, const TensorSource& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const TensorInfo& t : a.tensors()) {
    const TensorInfo& u = b.at(t.name);
    EXPECT_EQ(t.dtype, u.dtype) << t.name;
    EXPECT_EQ(t.shape, u.shape) << t.name;
    EXPECT_EQ(values<std::byte>(a, t.name), values<std::byte>(b, t.name)) << t.name;
  }
}

void expect_transposed(const std::vector<float>& a, const std::vector<float>& b, size_t rows,
                       size_t columns) {
  ASSERT_EQ(a.size(), rows * columns);
  ASSERT_EQ(b.size(), rows * columns);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j) EXPECT_EQ(a[i * columns + j], b[j * rows + i]);
}

TEST(PyTorchFile, ReadsWhatTorchSaved) {
  const auto file = open_tensors(kGolden + "plain.pth");
  EXPECT_EQ(file->tensors().size(), 21u);
  const std::vector<float> base = values<float>(*file, "f32");
  EXPECT_EQ(file->at("f32").shape, (Shape{4, 6}));
  EXPECT_EQ(values<float>(*file, "parameter"), base);
  const std::vector<double> wide = values<double>(*file, "f64");
  EXPECT_EQ(wide, std::vector<double>(base.begin(), base.end()));
  for (const char* name : {"f16", "bf16"}) {
    const std::vector<float> narrow = read_floats(*file, file->at(name));
    for (size_t i = 0; i < base.size(); ++i) EXPECT_NEAR(narrow[i], base[i], 0.01) << name;
  }
  EXPECT_EQ(file->at("transposed").shape, (Shape{6, 4}));
  expect_transposed(base, values<float>(*file, "transposed"), 4, 6);
  EXPECT_EQ(values<int64_t>(*file, "i64"), std::vector<int64_t>{1234567890123});
  EXPECT_EQ(file->at("i64").shape, Shape{});
  EXPECT_EQ(values<int32_t>(*file, "i32"), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(values<int32_t>(*file, "i16"), (std::vector<int32_t>{-2, 300}));
  EXPECT_EQ(values<int32_t>(*file, "i8"), (std::vector<int32_t>{-1, 7}));
  EXPECT_EQ(values<uint8_t>(*file, "bool"), (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(values<int64_t>(*file, "position_ids"), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(file->at("empty").shape, (Shape{0, 3}));

  const std::vector<float> head = values<float>(*file, "shared.head"),
                           tail = values<float>(*file, "shared.tail");
  EXPECT_EQ(values<float>(*file, "shared.step"), (std::vector<float>{head[1], tail[0], tail[3]}));
}

// {"epoch", "model": the same tensors, "args": Namespace, "optimizer", ...}
TEST(PyTorchFile, FindsTheModelAmongWhatTrainingLeaves) {
  expect_same(*open_tensors(kGolden + "plain.pth"), *open_tensors(kGolden + "model.pth"));
}

TEST(PyTorchFile, MapsWhatIsInCOrder) {
  const auto file = open_tensors(kGolden + "plain.pth");
  const auto where = [&](const char* name) { return file->bytes(file->at(name)).data(); };
  EXPECT_EQ(where("shared.head") + 4 * sizeof(float), where("shared.tail"));
  EXPECT_EQ(where("transposed"), where("transposed"));  // made once
}

TEST(PyTorchFile, NamesWhatItWillNotLoad) {
  const TempDir dir;
  write_file_atomic(dir / "old.pth", std::string("\x80\x02\x8a\x0al\xfc\x9c"
                                                 "F\xf9 j\xa8P\x19.",
                                                 15));
  EXPECT_ERROR(open_tensors(dir / "old.pth"), ErrorKind::kInput, "save it again with torch.save");
  std::string evil = read_file(kGolden + "plain.pth");
  const std::string from = "ccollections\nOrderedDict\n", to = "cposix\nsystem # harmless\n";
  ASSERT_EQ(from.size(), to.size());
  evil.replace(evil.find(from), from.size(), to);
  write_file_atomic(dir / "evil.pth", evil);
  EXPECT_ERROR(open_tensors(dir / "evil.pth"), ErrorKind::kInput,
               "names the Python object \"posix.system # harmless\", which is never loaded");
}

TEST(NpzFile, ReadsWhatNumPySaved) {
  const auto file = open_tensors(kGolden + "stored.npz");
  EXPECT_EQ(file->tensors().size(), 12u);
  EXPECT_EQ(file->at("Transformer/encoderblock_0/LayerNorm_0/bias").shape, Shape{6});
  EXPECT_EQ(file->at("fortran").shape, (Shape{4, 6}));
  const std::vector<double> wide = values<double>(*file, "f64");
  const std::vector<float> fortran = values<float>(*file, "fortran");
  EXPECT_EQ(std::vector<double>(fortran.begin(), fortran.end()), wide);
  EXPECT_EQ(file->at("bf16").dtype, DType::kBF16);
  EXPECT_EQ(read_floats(*file, file->at("bf16")), (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(values<int64_t>(*file, "i64"), std::vector<int64_t>{5});
  EXPECT_EQ(values<uint8_t>(*file, "u8"), (std::vector<uint8_t>{0, 1, 2}));
}

TEST(NpzFile, DeflatedArraysAreTheSame) {
  expect_same(*open_tensors(kGolden + "stored.npz"), *open_tensors(kGolden + "deflated.npz"));
}

// NumPy keeps the order that an array had in memory.
TEST(NpzFile, ColumnsBecomeRows) {
  const TempDir dir;
  for (const auto& [type, size] : {std::pair("|u1", 1), {"<f2", 2}, {"<f4", 4}, {"<f8", 8}}) {
    std::string columns;
    for (char element = 0; element < 6; ++element)
      columns += std::string(static_cast<size_t>(size), element);
    const std::string header =
        fmt::format("{{'descr': '{}', 'fortran_order': True, 'shape': (2, 3), }}", type);
    OutputFile(dir / "a.npz", O_CREAT | O_TRUNC)
        .write(test::zip_of({{"a.npy", test::npy_of(header, columns)}}));
    const auto source = open_tensors(dir / "a.npz");
    const std::span<const std::byte> rows = source->bytes(source->at("a"));
    ASSERT_EQ(rows.size(), columns.size());
    const int expected[] = {0, 2, 4, 1, 3, 5};
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_EQ(static_cast<int>(rows[i]), expected[i / static_cast<size_t>(size)]) << type << i;
  }
}

// Any byte of any file changed, any end cut off: tensors or a clear error.
TEST(Readers, SurviveDamage) {
  const TempDir dir;
  for (const char* name : {"plain.pth", "model.pth", "stored.npz", "deflated.npz"}) {
    const std::string good = read_file(kGolden + name);
    for (uint32_t i = 0; i < 400; ++i) {
      std::string bad = good;
      const uint32_t random = (i + 1) * 2654435761u;
      bad[random % bad.size()] = static_cast<char>(random >> 24);
      if (i % 8 == 0) bad.resize(random % bad.size());
      OutputFile(dir / "bad", O_CREAT | O_TRUNC).write(bad);
      try {
        const auto source = open_tensors(dir / "bad");
        for (const TensorInfo& t : source->tensors())
          EXPECT_EQ(source->bytes(t).size(), t.bytes) << t.name;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace vitrum
