extern "C" int vitrum_main(int argc, char** argv);

int main(int argc, char** argv) { return vitrum_main(argc, argv); }
