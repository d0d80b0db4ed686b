module comity

go 1.19
