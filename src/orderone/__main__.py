from orderone.cli.main import main

main()
