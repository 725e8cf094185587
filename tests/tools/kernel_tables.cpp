// Prints the tables of docs/kernels.md.
#include "tests/support/kernel_tables.h"

#include <cstdio>

int main() { std::fputs(vitrum::test::kernel_tables().c_str(), stdout); }
