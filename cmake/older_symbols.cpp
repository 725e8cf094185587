// What the linker puts in place of two functions (cmake/Wheel.cmake): the same, by their older versions.
#include <condition_variable>
#include <mutex>

extern "C" {

double older_hypot(double x, double y);
__asm__(".symver older_hypot, hypot@GLIBC_2.2.5");
double __wrap_hypot(double x, double y) { return older_hypot(x, y); }

void older_wait(std::condition_variable* self, std::unique_lock<std::mutex>& lock);
__asm__(".symver older_wait, _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* self,
                                                                      std::unique_lock<std::mutex>& lock) {
  older_wait(self, lock);
}
}
