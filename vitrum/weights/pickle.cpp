#include "vitrum/weights/pickle.h"

#include <algorithm>
#include <cstring>

#include "vitrum/core/error.h"
#include "vitrum/weights/tensor_source.h"

namespace vitrum {
namespace {

// The opcodes of pickletools that PyTorch's files consist of.
enum Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

using Kind = PickleValue::Kind;

}  // namespace

class PickleMachine {
 public:
  PickleMachine(Pickle& pickle, std::string_view bytes, const std::string& who)
      : values_(pickle.values_), text_(bytes), who_(who) {}

  uint32_t run() {
    for (size_t steps = 0;; ++steps) {
      if (steps == Pickle::kMaxSteps) broken("it has more than {} steps", Pickle::kMaxSteps);
      const auto op = take<uint8_t>();
      if (op == kStop) return pop();
      step(op);
    }
  }

 private:
  template <class... Args>
  [[noreturn]] void broken(fmt::format_string<Args...> format, Args&&... args) const {
    fail_input("{} cannot be read: at byte {} of its pickle, {}", who_, at_,
               fmt::format(format, std::forward<Args>(args)...));
  }

  void step(uint8_t op) {
    switch (op) {
      case kProto: return protocol(take<uint8_t>());
      case kFrame: return void(take<uint64_t>());
      case kMark: return marks_.push_back(stack_.size());
      case kPop: return void(pop());
      case kPopMark: return void(pop_to_mark());
      case kNone: return push({});
      case kBinFloat: return void(take<uint64_t>()), push({});
      case kNewTrue: return push_number(1);
      case kNewFalse: return push_number(0);
      case kBinInt: return push_number(take<int32_t>());
      case kBinInt1: return push_number(take<uint8_t>());
      case kBinInt2: return push_number(take<uint16_t>());
      case kLong1: return push_long(take<uint8_t>());
      case kLong4: return push_long(take<uint32_t>());
      case kBinUnicode:
      case kBinString: return push_text(take<uint32_t>());
      case kShortBinUnicode:
      case kShortBinString: return push_text(take<uint8_t>());
      case kBinUnicode8: return push_text(take<uint64_t>());
      case kBinBytes: return void(bytes(take<uint32_t>())), push({});
      case kShortBinBytes: return void(bytes(take<uint8_t>())), push({});
      case kBinBytes8: return void(bytes(take<uint64_t>())), push({});
      default: return container_step(op);
    }
  }

  void container_step(uint8_t op) {
    switch (op) {
      case kEmptyDict: return push({Kind::kDict});
      case kEmptyList:
      case kEmptySet: return push({Kind::kList});
      case kEmptyTuple: return push({Kind::kTuple});
      case kTuple: return push_tuple(pop_to_mark());
      case kTuple1: return push_tuple(pop_many(1));
      case kTuple2: return push_tuple(pop_many(2));
      case kTuple3: return push_tuple(pop_many(3));
      case kAppend: return extend(pop_many(1), Kind::kList);
      case kAppends:
      case kAddItems: return extend(pop_to_mark(), Kind::kList);
      case kSetItem: return extend(pop_many(2), Kind::kDict);
      case kSetItems: return extend(pop_to_mark(), Kind::kDict);
      default: return object_step(op);
    }
  }

  void object_step(uint8_t op) {
    switch (op) {
      case kBinPut: return put(take<uint8_t>());
      case kLongBinPut: return put(take<uint32_t>());
      case kMemoize: return put(memo_.size());
      case kBinGet: return get(take<uint8_t>());
      case kLongBinGet: return get(take<uint32_t>());
      case kGlobal: return push_line_global();
      case kStackGlobal: return push_stack_global();
      case kReduce:
      case kNewObj: return call();
      case kBuild: return void(pop());  // attributes of what is on the stack: not ours to keep
      case kBinPersId: return push_storage();
      default: broken("opcode 0x{:02x} is none that checkpoints have", op);
    }
  }

  std::string_view bytes(uint64_t count) {
    if (count > text_.size() - at_) broken("it ends too early");
    return text_.substr(std::exchange(at_, at_ + count), count);
  }
  template <class T>
  T take() {
    T x;
    std::memcpy(&x, bytes(sizeof x).data(), sizeof x);
    return x;
  }
  std::string_view line() {
    const size_t end = text_.find('\n', at_);
    if (end == text_.npos) broken("it ends too early");
    const std::string_view found = bytes(end - at_);
    ++at_;
    return found;
  }

  void protocol(int version) {
    if (version < 2 || version > 5) broken("protocol {} is not one of 2 to 5", version);
  }

  void push(PickleValue value) {
    if (values_.size() == Pickle::kMaxValues)
      broken("it has more than {} values", Pickle::kMaxValues);
    stack_.push_back(static_cast<uint32_t>(values_.size()));
    values_.push_back(std::move(value));
  }
  void push_number(int64_t n) { push({Kind::kNumber, 0, n}); }
  void push_text(uint64_t length) { push({Kind::kString, 0, 0, bytes(length)}); }
  void push_tuple(std::vector<uint32_t> items) { push({Kind::kTuple, 0, 0, {}, std::move(items)}); }
  // Two's complement, little-endian. What does not fit (a seed, say) is nothing that tensors need.
  void push_long(uint32_t length) {
    const std::string_view digits = bytes(length);
    if (length > sizeof(int64_t)) return push({});
    int64_t n = length > 0 && digits.back() < 0 ? -1 : 0;
    std::memcpy(&n, digits.data(), length);
    push_number(n);
  }

  // What was pushed since the last mark is all that may be taken.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<uint32_t> pop_many(size_t count) {
    if (stack_.size() - floor() < count) broken("it takes more than there is");
    std::vector<uint32_t> top(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return top;
  }
  uint32_t pop() { return pop_many(1)[0]; }
  std::vector<uint32_t> pop_to_mark() {
    if (marks_.empty()) broken("it has no mark");
    std::vector<uint32_t> top = pop_many(stack_.size() - marks_.back());
    marks_.pop_back();
    return top;
  }
  PickleValue& top() {
    if (stack_.size() == floor()) broken("it takes more than there is");
    return values_[stack_.back()];
  }

  void extend(const std::vector<uint32_t>& items, Kind kind) {
    PickleValue& target = top();
    if (target.kind == Kind::kInert) return;
    if (target.kind != kind || (kind == Kind::kDict && items.size() % 2 != 0))
      broken("it fills what is no {}", kind == Kind::kDict ? "dictionary" : "list");
    target.items.insert(target.items.end(), items.begin(), items.end());
  }

  void put(size_t index) {
    if (index >= Pickle::kMaxMemo) broken("the memo has no place {}", index);
    top();
    if (memo_.size() <= index) memo_.resize(index + 1, kNoValue);
    memo_[index] = stack_.back();
  }
  void get(size_t index) {
    if (index >= memo_.size() || memo_[index] == kNoValue)
      broken("the memo has no entry {}", index);
    stack_.push_back(memo_[index]);
  }

  void push_global(std::string_view module, std::string_view name) {
    if (module == "builtins") module = "__builtin__";  // its name in protocol 2
    for (size_t i = 0; i < kTorchGlobals.size(); ++i) {
      const std::string_view known = kTorchGlobals[i].name;
      if (known.size() == module.size() + 1 + name.size() && known.starts_with(module) &&
          known[module.size()] == '.' && known.ends_with(name))
        return push({Kind::kGlobal, static_cast<uint8_t>(i)});
    }
    fail_input(
        "{} names the Python object {}, which is never loaded; save the weights alone: "
        "torch.save(model.state_dict(), ...)",
        who_, shown_name(fmt::format("{}.{}", module, name)));
  }
  void push_line_global() {
    const std::string_view module = line(), name = line();
    push_global(module, name);
  }
  void push_stack_global() {
    const auto names = pop_many(2);
    const PickleValue &module = values_[names[0]], &name = values_[names[1]];
    if (module.kind != Kind::kString || name.kind != Kind::kString)
      broken("an object's name is no string");
    push_global(module.text, name.text);
  }

  const TorchGlobal* global(uint32_t ref) const {
    const PickleValue& v = values_[ref];
    return v.kind == Kind::kGlobal ? &kTorchGlobals[v.global] : nullptr;
  }

  void call() {
    const auto pair = pop_many(2);
    const TorchGlobal* callee = global(pair[0]);
    const PickleValue& args = values_[pair[1]];
    if (!callee || args.kind != Kind::kTuple) broken("it calls what is no function");
    switch (callee->role) {
      case TorchRole::kDict:
        if (!args.items.empty()) broken("a dictionary is made of arguments");
        return push({Kind::kDict});
      case TorchRole::kTensor: return push_tensor(args.items, 4);
      case TorchRole::kTensorV3: return push_tensor(args.items, 7);
      case TorchRole::kParameter:
        if (args.items.empty() || values_[args.items[0]].kind != Kind::kTensor)
          broken("a parameter is no tensor");
        return stack_.push_back(args.items[0]);
      case TorchRole::kElements: broken("it calls a type");
      case TorchRole::kInert: return push({});
    }
  }

  // Of the arguments, requires_grad and the hooks do not matter.
  void push_tensor(const std::vector<uint32_t>& args, size_t least) {
    if (args.size() < least || values_[args[0]].kind != Kind::kStorage)
      broken("a tensor lacks its storage");
    std::vector<uint32_t> items(args.begin(), args.begin() + 4);
    if (least == 7) items.push_back(args[6]);
    push({Kind::kTensor, 0, 0, {}, std::move(items)});
  }

  // ('storage', class, key, device, number of elements)
  void push_storage() {
    const PickleValue& id = values_[pop()];
    const TorchGlobal* type = nullptr;
    if (id.kind == Kind::kTuple && id.items.size() >= 5) type = global(id.items[1]);
    if (!type || type->role != TorchRole::kElements) broken("a storage has no known class");
    const PickleValue &key = values_[id.items[2]], &count = values_[id.items[4]];
    if (key.kind != Kind::kString || count.kind != Kind::kNumber)
      broken("a storage lacks its key or its size");
    push({Kind::kStorage, values_[id.items[1]].global, count.number, key.text});
  }

  static constexpr uint32_t kNoValue = UINT32_MAX;

  std::deque<PickleValue>& values_;
  std::string_view text_;
  const std::string& who_;
  size_t at_ = 0;
  std::vector<uint32_t> stack_, memo_;
  std::vector<size_t> marks_;
};

Pickle::Pickle(std::string_view bytes, const std::string& who)
    : root_(PickleMachine(*this, bytes, who).run()) {}

}  // namespace vitrum
